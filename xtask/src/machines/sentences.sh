#!/bin/bash
# The suite of a machine of `cargo xtask machines`. Each function whose name begins with `it_` is a sentence that is to be
# true; those that begin with `then_` run after a reboot. A function that ends with 77 prints why it is skipped. Messages,
# one per line, go to the second serial port; outcome.rs reads them.

export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root XDG_RUNTIME_DIR=
tools=/tools
image=$(cat $tools/image)
state=/var/lib/machine
# Longest time of a sentence, on an emulated processor of a busy host.
limit=240

say() { echo "$@" > /dev/ttyS1; }

skip() {
    echo "$@"
    exit 77
}

fail() {
    echo "$@" >&2
    exit 1
}

# Whether this kernel has a version of at least this one.
kernel_is() { [ "$(printf '%s\n%s\n' "$1" "$(uname -r | cut -d- -f1)" | sort -V | head -1)" = "$1" ]; }

# Compares files of the image below $1 with their digests: $2 of them, chosen at random.
compare() { (cd "$1" && shuf -n "$2" $tools/sums | sha256sum --check --quiet); }

# Runs a command as an ordinary user, in a session of its own.
user() { su --login someone --command "$*"; }

mode_of() { tarpon status "$1" | grep -o 'native\|fuse' | head -1; }

nothing_is_mounted() {
    ! grep -E 'tarpon|/mnt' /proc/mounts || fail "a mount is left"
}

# Kills the server of root's store, and not the process that holds its connections.
kill_server() {
    local killed=
    for pid in $(pgrep --full 'tarpon.* serve'); do
        if ! tr '\0' ' ' < /proc/"$pid"/cmdline | grep -q -- '--hold'; then
            kill -KILL "$pid"
            killed=yes
        fi
    done
    [ "$killed" ] || fail "no server runs"
}

# --- root

it_says_what_works() {
    tarpon doctor
    tarpon --version
}

it_mounts_an_image_and_every_file_that_is_read_is_right() {
    tarpon mount "$image" /mnt
    compare /mnt 20
    say "fact mode: $(mode_of /mnt)"
    tarpon umount /mnt
    nothing_is_mounted
}

it_mounts_in_mode_native() {
    kernel_is 5.15 || skip "mode native needs Linux 5.15"
    tarpon mount --mode native "$image" /mnt
    compare /mnt 20
    tarpon umount /mnt
}

it_mounts_in_mode_native_from_a_loop_device_which_ends_with_the_mount() {
    kernel_is 5.15 || skip "mode native needs Linux 5.15"
    export TARPON_STORE=/var/lib/tarpon-loop TARPON_EROFS=loop
    modprobe loop || true
    tarpon mount --mode native "$image" /mnt

    [ -n "$(losetup --list --noheadings)" ]
    compare /mnt 20
    tarpon umount /mnt
    [ -z "$(losetup --list --noheadings)" ]
}

it_mounts_in_mode_fuse() {
    tarpon mount --mode fuse "$image" /mnt
    compare /mnt 20
    tarpon umount /mnt
}

it_writes_to_a_writable_mount() {
    tarpon mount --rw "$image" /mnt
    echo text > /mnt/data/new
    rm -r /mnt/data/0001
    [ "$(cat /mnt/data/new)" = text ]
    [ ! -e /mnt/data/0001 ]
    tarpon umount /mnt
}

it_serves_reads_after_the_server_was_killed() {
    tarpon mount "$image" /mnt
    compare /mnt 5
    kill_server
    compare /mnt 40
    tarpon umount /mnt
}

it_runs_a_container_and_returns_its_exit_code() {
    [ "$(tarpon run --rm --network none "$image" sh -c 'echo text')" = text ]
    code=0
    tarpon run --rm --network none "$image" sh -c 'exit 7' || code=$?
    [ "$code" = 7 ]
}

it_runs_another_program_in_a_container_and_commits_it() {
    tarpon run -d --name one --network none "$image" sleep 1000
    tarpon exec one sh -c 'echo text > /data/new'
    rm -rf /var/tmp/layout
    tarpon commit one oci:/var/tmp/layout:v1
    tarpon rm -f one
    tarpon push oci:/var/tmp/layout:v1
    [ "$(tarpon run --rm --network none oci:/var/tmp/layout:v1 sh -c 'exec 3< /data/new; read -r line <&3; echo $line')" = text ]
}

it_finds_its_store_sound() { tarpon cache verify; }

# --- an ordinary user

it_mounts_for_an_ordinary_user() {
    user mkdir -p mnt
    user tarpon mount "$image" mnt
    user "cd mnt && shuf -n 20 $tools/sums | sha256sum --check --quiet"
    user tarpon umount mnt
}

it_runs_a_container_for_an_ordinary_user() {
    [ "$(user tarpon run --rm --network none "$image" sh -c "'echo text > /data/new; echo text'")" = text ]
}

it_runs_another_program_in_a_container_of_an_ordinary_user() {
    user tarpon run -d --name one --network none "$image" sleep 1000
    [ "$(user tarpon exec one sh -c "'echo text'")" = text ]
    user tarpon rm -f one
}

it_writes_to_a_writable_mount_of_an_ordinary_user() {
    user mkdir -p rw
    user tarpon mount --rw "$image" rw
    user tarpon unshare sh -c "'rm -r rw/data/0001 && echo text > rw/data/new'"
    user tarpon umount rw
}

it_shows_images_to_the_podman_of_an_ordinary_user() {
    user tarpon podman setup
    user tarpon podman add "$image"
    [ "$(user podman run --rm --network none --pull never "$image" sh -c "'echo text'")" = text ]
    user tarpon podman rm "$image"
}

# --- Podman and containerd

it_shows_images_to_podman() {
    tarpon podman setup
    tarpon podman add "$image"
    podman images | grep -q sample
    [ "$(podman run --rm --network none --pull never "$image" sh -c 'echo text')" = text ]
}

it_keeps_containers_of_podman_alive_when_its_server_is_killed() {
    podman run -d --name reader --network none --pull never "$image" sleep 1000
    kill_server
    podman exec reader sha256sum /data/list
    podman rm -f -t 0 reader
}

# --- units

it_is_a_service() {
    tarpon podman rm "$image" || true
    tarpon umount --all
    cp $tools/tarpon.service $tools/tarpon.socket /etc/systemd/system/
    systemctl daemon-reload
    systemctl enable --now tarpon.socket tarpon.service
    curl -sS --fail-with-body --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/images
    tarpon mount "$image" /mnt
    compare /mnt 10
}

it_goes_on_when_the_service_is_restarted_or_killed() {
    systemctl is-active tarpon.service
    systemctl kill --signal KILL tarpon.service
    compare /mnt 40
    systemctl reload tarpon.service || systemctl restart tarpon.service
    compare /mnt 40
    mountpoint -q /mnt
}

# --- after a reboot, with the mount of the service

then_the_service_has_mounted_again_what_was_mounted() {
    for _ in $(seq 60); do
        ! mountpoint -q /mnt || break
        sleep 1
    done
    compare /mnt 20
}

then_the_store_is_sound() { tarpon cache verify; }

then_everything_can_be_unmounted_and_removed() {
    tarpon umount --all
    systemctl disable --now tarpon.service tarpon.socket
    tarpon cache clear
    nothing_is_mounted
}

# --- the run

sentences() { grep -o "^$1_[a-z_]*" $tools/sentences.sh | grep -F "$(cat $tools/only)"; }

run() {
    for name in $(sentences "$1"); do
        code=0
        timeout --kill-after=10 $limit bash -eu -o pipefail $tools/sentences.sh "$name" > /tmp/out 2>&1 < /dev/null || code=$?
        text=$(tail -n 4 /tmp/out | tr '\n' '|' | tr -d '\r' | cut -c1-500)
        case $code in
        0) say "true $name" ;;
        77) say "skipped $name: $text" ;;
        *)
            say "false $name: exit $code: $text"
            cat /tmp/out
            umount -l /mnt 2> /dev/null
            ;;
        esac
    done
}

if [ $# = 1 ]; then
    "$1"
    exit
fi

# A registry on loopback needs no TLS: the host's is there under the port 5000.
systemd-socket-activate --listen 127.0.0.1:5000 /lib/systemd/systemd-socket-proxyd "$(cat $tools/registry)" &

if [ ! -e $state/second ]; then
    mkdir -p $state
    install $tools/tarpon /usr/local/bin/tarpon
    modprobe -a fuse overlay loop
    loginctl enable-linger someone
    say "fact kernel: $(uname -r)"
    say "fact systemd: $(systemctl --version | awk 'NR == 1 { print $2 }')"
    say "fact podman: $(podman --version | awk '{ print $3 }')"
    run it
    touch $state/second
    sync
    systemctl reboot
else
    run "then"
    say end
    systemctl poweroff
fi
