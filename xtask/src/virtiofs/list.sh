#!/bin/busybox sh
# Prints a line for each entry of the directory $1: its name, the number of regular files in it, a digest of all names and
# attributes, and a digest of all contents. Busybox runs it in the virtual machine and on the host.
cd "$1" || exit 1
digest() { sha256sum | cut -d ' ' -f 1; }
for entry in *; do
    attributes=$(find "$entry" -xdev -print0 | sort -z | xargs -0 -r stat -c '%N %f %u %g %h %s %Y %t %T' | digest)
    contents=$(find "$entry" -xdev -type f -print0 | sort -z | xargs -0 -r sha256sum | digest)
    files=$(find "$entry" -xdev -type f | wc -l)
    echo "listed $entry $files $attributes $contents"
done
