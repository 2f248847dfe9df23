#!/bin/sh
# Work on the messages of a channel with curl and jq alone: one after the other, until there is none for 20 s.
#
#   sh pull.sh http://127.0.0.1:8080 orders billing ./handle-order
#
# The command gets the body on standard input. If it fails, the message is delivered again after 5 s. What is not
# answered within a minute, for example because this script was killed, is delivered again, too.
set -eu
gateway=$1 topic=$2 channel=$3
shift 3

while true; do
    pulled=$(curl --fail --silent --show-error -X POST \
        "$gateway/pull?topic=$topic&channel=$channel&max=1&wait_ms=20000&lease_ms=60000")
    lease=$(printf '%s' "$pulled" | jq -r '.messages[0].lease // empty')
    [ -n "$lease" ] || exit 0
    if printf '%s' "$pulled" | jq -j '.messages[0].body' | "$@"; then
        ack="{\"fin\":[\"$lease\"]}"
    else
        ack="{\"req\":[{\"lease\":\"$lease\",\"timeout_ms\":5000}]}"
    fi
    curl --fail --silent --show-error -d "$ack" "$gateway/ack" >/dev/null
done
