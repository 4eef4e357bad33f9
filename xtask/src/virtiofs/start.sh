# Executes the workload with the shell of the image, in the image's root, then the command of its arguments. The folder
# /run/start is in memory. The same script runs in the virtual machine and on the host.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PATH HOME
/bin/sh /run/start/command < /dev/null > /run/start/output 2>&1
code=$?
/run/start/busybox sed 's/^/output /' /run/start/output
echo "started $code"
exec "$@"
