#!/usr/bin/env bash
# Takes docs/images/operation.png: an operation as Temporal's UI shows it, of a standalone made for the purpose.
# It needs "make build" and Chromium.
set -euo pipefail
cd "$(dirname "$0")/../.."
browser=$(command -v chromium || command -v google-chrome) || { echo "Please install Chromium." >&2; exit 1; }
work=$(mktemp -d); chmod 755 "$work"
api=16666 ui=18233
export CYBORG_URL=http://127.0.0.1:$api
CYBORG_API_LISTEN=127.0.0.1:$api CYBORG_AGENT_ENDPOINT_LISTEN=127.0.0.1:16667 CYBORG_AGENT_METRICS_LISTEN='' \
	CYBORG_STANDALONE_TEMPORAL_LISTEN=127.0.0.1:17233 CYBORG_STANDALONE_TEMPORAL_UI_LISTEN=127.0.0.1:$ui \
	bin/cyborg-standalone --state-dir "$work/state" --hosts rack1=fake:4xfpga >"$work/log" 2>&1 &
standalone=$!
trap 'kill $standalone; wait $standalone || true; rm -rf "$work"' EXIT
for _ in $(seq 300); do
	bin/cyborg accelerator list -f value -c uuid 2>/dev/null | grep -q . && break
	sleep 0.2
done
bin/cyborg driver update rack1 fake --option park=4xfpga --option program_latency=2s --quiet >"$work/out"
bin/cyborg accelerator create aes --device-type FPGA --quiet >"$work/out"
{ echo 'CYBORGFAKE/1 target=FPGA id=aes-v1'; head -c 1000000 /dev/urandom; } >"$work/state/images/rack1/aes-v1.fake"
operation=$(bin/cyborg accelerator program aes aes-v1.fake --no-wait)
bin/cyborg operation watch "$operation" --quiet >"$work/out"
page="http://127.0.0.1:$ui/namespaces/cyborg/workflows/program%2F$operation"
"$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
	--disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$work/browser" \
	--window-size=1400,1030 --virtual-time-budget=20000 --screenshot="$PWD/docs/images/operation.png" "$page" 2>"$work/browser.log" ||
	{ cat "$work/browser.log" >&2; exit 1; }
