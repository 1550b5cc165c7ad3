#!/bin/sh
# Makes an image with what the adapters of the peers need: a JDK with Curator's recipes, and Python with kazoo,
# all from Debian's packages. The adapters themselves are not in it; they are compiled when they are used.
#
#     peers.sh [--tag]
#
# Prints the image's name on standard output, everything else on standard error. The name ends in a hash of this
# script. With --tag it prints the name and builds nothing. Needs and settings are those of build.sh.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mirror=${ZKLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# The suite decides the versions: Curator 5.4.0 and kazoo 2.8.0.
suite=bookworm
packages=libcurator-recipes-java,openjdk-17-jdk-headless,python3-kazoo

say() { echo "peers.sh: $*" >&2; }
fail() {
	say "$*"
	exit 1
}

image=zklock-peers:$(sha256sum <"$here/peers.sh" | cut -c1-12)
if [ "${1:-}" = --tag ]; then
	echo "$image"
	exit 0
fi

command -v docker >/dev/null || fail "docker is not installed"
docker version >/dev/null 2>&1 || fail "the Docker engine does not answer; is the daemon running?"
have() { docker image inspect "$image" >/dev/null 2>&1; }
if have; then
	echo "$image"
	exit 0
fi

if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || fail "debootstrap needs root, and there is no sudo"
	exec sudo -n --preserve-env=TMPDIR,ZKLOCK_DEBIAN_MIRROR,DOCKER_HOST "$here/peers.sh"
fi

# Several test binaries may get here at once; one builds and the others take its image.
work_root=${TMPDIR:-/var/tmp}
exec 9>/var/tmp/zklock-image-peers.lock
command -v flock >/dev/null && flock 9
if have; then
	echo "$image"
	exit 0
fi

if ! command -v debootstrap >/dev/null; then
	command -v apt-get >/dev/null || fail "debootstrap is not installed, and there is no apt-get to get it"
	say "installing debootstrap"
	{
		apt-get update -qq || true # one broken source of many is no reason to stop; the install tells
		DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends debootstrap
	} >&2
fi

root=$(mktemp -d "$work_root/zklock-peers.XXXXXX")
log=$root.log
cleanup() {
	rm -rf --one-file-system "$root" "$log"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "building $image: $suite with $packages from $mirror"
started=$(date +%s)
if ! debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$log" 2>&1; then
	tail -n 30 "$log" "$root/debootstrap/debootstrap.log" >&2 || true
	fail "debootstrap failed; its last lines are above"
fi
# A failed step of debootstrap can leave its mounts behind, and the clean-up must not follow them.
umount "$root/proc" "$root/sys" 2>/dev/null || true

# One folder with what Curator's client loads. The whole of /usr/share/java holds several slf4j back ends.
lib=$root/opt/peers/lib
mkdir -p "$lib"
for jar in curator-client curator-framework curator-recipes zookeeper zookeeper-jute guava slf4j-api slf4j-nop; do
	cp -L "$root/usr/share/java/$jar.jar" "$lib/$jar.jar"
done
for jar in failureaccess metrics-core jackson-core jackson-databind jackson-annotations; do
	[ ! -e "$root/usr/share/java/$jar.jar" ] || cp -L "$root/usr/share/java/$jar.jar" "$lib/$jar.jar"
done

say "importing"
tar -C "$root" -c \
	--exclude=./var/cache/apt/* --exclude=./var/lib/apt/lists/* --exclude=./var/log/* --exclude=./var/cache/debconf/* \
	--exclude=./usr/share/doc/* --exclude=./usr/share/man/* --exclude=./usr/share/info/* \
	--exclude=./usr/share/locale/* --exclude=./usr/share/maven-repo/* --exclude=./dev/* --exclude=./debootstrap \
	--exclude=./tmp/* . |
	docker import --change 'ENV LANG=C.UTF-8' --change 'LABEL zklock.image=peers' - "$image" >&2
say "built $image in $(($(date +%s) - started)) s"
echo "$image"
