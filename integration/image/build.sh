#!/bin/sh
# Makes a ZooKeeper image out of Debian's packages, for machines that reach no container registry.
#
#     build.sh [--tag] [3.9|3.8]
#
# Prints the image's name on standard output, everything else on standard error. The name ends in a
# hash of this folder's scripts: an unchanged recipe is built once, a changed one again. With --tag it
# prints the name and builds nothing.
#
# Needs Docker and root (or sudo); installs debootstrap when it is missing. Takes about a minute.
# Settings: ZKLOCK_DEBIAN_MIRROR, and TMPDIR for the 600 MB of the tree in work (default /var/tmp).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mirror=${ZKLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}
tag_only=
if [ "${1:-}" = --tag ]; then
	tag_only=1
	shift
fi

version=${1:-3.9}
case $version in
3.9) suite=trixie jre=openjdk-21-jre-headless ;;
3.8) suite=bookworm jre=openjdk-17-jre-headless ;;
*)
	echo "build.sh: no recipe for ZooKeeper $version, only for 3.9 and 3.8" >&2
	exit 2
	;;
esac

say() { echo "build.sh: $*" >&2; }
fail() {
	say "$*"
	exit 1
}

hash=$(cat "$here/build.sh" "$here/entrypoint.sh" | sha256sum | cut -c1-12)
image=zklock-zookeeper:$version-$hash
if [ -n "$tag_only" ]; then
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
	exec sudo -n --preserve-env=TMPDIR,ZKLOCK_DEBIAN_MIRROR,DOCKER_HOST "$here/build.sh" "$version"
fi

# Several test binaries may get here at once; one builds and the others take its image.
work_root=${TMPDIR:-/var/tmp}
exec 9>"/var/tmp/zklock-image-$version.lock"
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
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap
	} >&2
fi

root=$(mktemp -d "$work_root/zklock-image.XXXXXX")
log=$root.log
cleanup() {
	rm -rf --one-file-system "$root" "$log"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "building $image: $suite with libzookeeper-java and $jre from $mirror"
started=$(date +%s)
if ! debootstrap --variant=minbase \
	--include="libzookeeper-java,$jre,iptables,iproute2,procps" \
	"$suite" "$root" "$mirror" >"$log" 2>&1; then
	tail -n 30 "$log" "$root/debootstrap/debootstrap.log" >&2 || true
	fail "debootstrap failed; its last lines are above"
fi
# A failed step of debootstrap can leave its mounts behind, and the clean-up must not follow them.
umount "$root/proc" "$root/sys" 2>/dev/null || true

# Only what the server loads. The whole folder does not start: it holds several slf4j back ends.
lib=$root/opt/zookeeper/lib
mkdir -p "$lib"
for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple snappy-java commons-cli; do
	cp -L "$root/usr/share/java/$jar.jar" "$lib/$jar.jar"
done
for jar in "$root"/usr/share/java/metrics-core.jar "$root"/usr/share/java/netty-*.jar; do
	[ -L "$jar" ] || [ "$jar" = "$root/usr/share/java/metrics-core.jar" ] || continue
	cp -L "$jar" "$lib/"
done

install -m 0755 "$here/entrypoint.sh" "$root/usr/local/bin/zookeeper-entrypoint"
chroot "$root" useradd --uid 1000 --user-group --no-create-home --shell /usr/sbin/nologin zookeeper
mkdir -p "$root/conf" "$root/data" "$root/datalog"

# Runs the server once, alone and for a moment, so that the JVM writes down the classes it loaded.
# It is a saving of start time only: without the archive the image works as well.
archive_classes() {
	# In a network namespace of its own, where its port is free and nobody reaches it.
	unshare --net chroot "$root" sh -c '
		mkdir -p /tmp/cds && printf "dataDir=/tmp/cds\nclientPort=2181\nadmin.enableServer=false\n" >/tmp/cds/zoo.cfg
		java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=/opt/zookeeper/classes.jsa -Xmx256m \
			-cp "/opt/zookeeper/lib/*" org.apache.zookeeper.server.quorum.QuorumPeerMain /tmp/cds/zoo.cfg >/tmp/cds/log 2>&1 &
		pid=$!
		tries=0
		until grep -q "binding to port\|bound to port" /tmp/cds/log; do
			tries=$((tries + 1))
			[ $tries -lt 100 ] && kill -0 $pid 2>/dev/null || break
			sleep 0.2
		done
		sleep 1
		kill -TERM $pid
		wait $pid
		rm -rf /tmp/cds
		[ -f /opt/zookeeper/classes.jsa ]
	'
}
mount -t proc proc "$root/proc"
archive_classes >&2 || say "no class archive; servers will start a little slower"
umount "$root/proc"

say "importing"
tar -C "$root" -c \
	--exclude=./var/cache/apt/* --exclude=./var/lib/apt/lists/* --exclude=./var/log/* --exclude=./var/cache/debconf/* \
	--exclude=./usr/share/doc/* --exclude=./usr/share/man/* --exclude=./usr/share/info/* \
	--exclude=./usr/share/locale/* --exclude=./usr/share/java/* --exclude=./usr/share/maven-repo/* \
	--exclude=./usr/share/zookeeper/* --exclude=./dev/* --exclude=./debootstrap --exclude=./tmp/* . |
	docker import \
		--change 'ENTRYPOINT ["/usr/local/bin/zookeeper-entrypoint"]' \
		--change 'ENV LANG=C.UTF-8' \
		--change 'VOLUME ["/data", "/datalog"]' \
		--change 'WORKDIR /conf' \
		--change "LABEL zklock.image=$version" \
		- "$image" >&2
docker tag "$image" "zklock-zookeeper:$version"
say "built $image in $(($(date +%s) - started)) s"
echo "$image"
