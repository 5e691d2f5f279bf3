#!/bin/sh
# Stands for the entrypoint of ScyllaDB's image. Notes in $NODE_DIR what happens to it, and runs until it is told to end.
: "${NODE_DIR:?}"
printf '%s\n' "$@" > "$NODE_DIR/arguments.part"
mv "$NODE_DIR/arguments.part" "$NODE_DIR/arguments"
trap 'echo TERM >> "$NODE_DIR/signals"; exit 3' TERM
trap 'echo HUP >> "$NODE_DIR/signals"' HUP
# A process that loses its parent at once.
(sleep 0.2 &)
echo $$ > "$NODE_DIR/pid"
# Ends with whoever started it: a test that fails leaves nothing behind.
while kill -0 "$PPID" 2> /dev/null; do
    if [ -f "$NODE_DIR/end" ]; then exit "$(cat "$NODE_DIR/end")"; fi
    sleep 0.05 &
    wait $!
done
