#!/bin/sh
# A fake of the entrypoint of ScyllaDB's image. Records its arguments and signals in $NODE_DIR, and runs until the file "end" appears.
: "${NODE_DIR:?}"
printf '%s\n' "$@" > "$NODE_DIR/arguments.part"
mv "$NODE_DIR/arguments.part" "$NODE_DIR/arguments"
trap 'echo TERM >> "$NODE_DIR/signals"; exit 3' TERM
trap 'echo HUP >> "$NODE_DIR/signals"' HUP
# An orphan.
(sleep 0.2 &)
echo $$ > "$NODE_DIR/pid"
# Exits with its parent, so that a failed test leaves no process behind.
while kill -0 "$PPID" 2> /dev/null; do
    if [ -f "$NODE_DIR/end" ]; then exit "$(cat "$NODE_DIR/end")"; fi
    sleep 0.05 &
    wait $!
done
