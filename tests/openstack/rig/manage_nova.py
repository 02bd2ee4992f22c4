"""nova-manage, loaded once: forks make the three schemas side by side, then map the cells."""
import os
import sys

from nova.cmd import manage

etc, cell0, cell1, bus = sys.argv[1:5]


def start(conf, *argv):
    pid = os.fork()
    if pid == 0:
        sys.argv = ["nova-manage", "--config-file", etc + "/" + conf, *argv]
        status = 1
        try:
            status = manage.main() or 0
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else (1 if e.code else 0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid


def finish(*pids):
    if [pid for pid in pids if os.waitpid(pid, 0)[1]]:
        sys.exit("nova-manage failed")


finish(start("nova.conf", "api_db", "sync"), start("nova.conf", "db", "sync", "--local_cell"), start("cell0.conf", "db", "sync", "--local_cell"))
finish(start("nova.conf", "cell_v2", "map_cell0", "--database_connection", cell0))
finish(start("nova.conf", "cell_v2", "create_cell", "--name", "cell1", "--transport-url", bus, "--database_connection", cell1))
