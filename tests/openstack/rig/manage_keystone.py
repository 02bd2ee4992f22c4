"""keystone-manage db_sync and bootstrap in one interpreter: the modules load once, a fork runs each command."""
import os
import sys

from keystone.cmd import manage

conf, password, url, region = sys.argv[1:5]


def run(*argv):
    pid = os.fork()
    if pid == 0:
        sys.argv = ["keystone-manage", "--config-file", conf, *argv]
        status = 1
        try:
            status = manage.main() or 0
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else (1 if e.code else 0)
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(status)
    if status := os.waitpid(pid, 0)[1]:
        sys.exit("keystone-manage %s: status %d" % (argv[0], status))


run("db_sync")
run("bootstrap", "--bootstrap-password", password, "--bootstrap-region-id", region,
    "--bootstrap-public-url", url, "--bootstrap-internal-url", url, "--bootstrap-admin-url", url)
