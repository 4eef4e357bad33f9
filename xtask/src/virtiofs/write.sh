#!/bin/busybox sh
# Changes the root $1 in every way that check.rs looks for, and compares what it reads back.
cd "$1/etc" || exit 1
set -e
before=$(wc -c < debian_version)
echo written > new
echo appended >> debian_version
rm issue
mv issue.net renamed
chmod 600 shells
mkdir folder
ln -s ../new folder/link
ln new linked
[ "$(cat folder/link linked)" = "written
written" ]
[ "$(wc -c < debian_version)" = $((before + 9)) ]
[ ! -e issue ] && [ ! -e issue.net ] && [ -s renamed ]
sync
