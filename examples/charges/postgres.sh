#!/usr/bin/env bash
# Runs a PostgreSQL server that is thrown away: prints its URL on one line, and stops and removes it when standard
# input ends. With DATABASE_URL set it prints that and runs nothing. It listens on a Unix socket only. Needs Debian's
# package postgresql, or another with initdb and pg_ctl; as root it installs that with apt-get.
set -euo pipefail

if [ -n "${DATABASE_URL-}" ]; then
	echo "$DATABASE_URL"
	exec cat >/dev/null
fi

# The newest server there is. Debian does not put it on the PATH.
find_server() {
	local initdb
	initdb=$(find /usr/lib/postgresql /usr/local/pgsql /usr/pgsql-* -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
	[ -n "$initdb" ] || initdb=$(command -v initdb) || return 1
	dirname "$initdb"
}

if ! bin=$(find_server) && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
	echo "postgres: no server here; installing Debian's package postgresql" >&2
	{
		export DEBIAN_FRONTEND=noninteractive
		apt-get update && apt-get install -y --no-install-recommends postgresql-common &&
			# The package is not to start a server of its own.
			sed -ri 's/#?(create_main_cluster) .*$/\1 = false/' /etc/postgresql-common/createcluster.conf &&
			apt-get install -y --no-install-recommends postgresql
	} >&2 || true
fi
if ! bin=$(find_server); then
	echo "postgres: there is no PostgreSQL server: install the package postgresql, or set DATABASE_URL" >&2
	exit 1
fi

as=() # it does not run as root
[ "$(id -u)" -ne 0 ] || as=(runuser -u postgres --)

# Under /tmp, since the name of a socket may have 107 bytes.
dir=$(mktemp -d /tmp/charges-postgres.XXXXXX)
cd "$dir" # a place that the user postgres may be in
cleanup() {
	"${as[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true
	cd / && rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
[ "$(id -u)" -ne 0 ] || chown postgres "$dir"

# Who may enter the directory, mode 0700, may use the server. Its data need not outlive anything.
log() { "$@" >>"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }; }
log "${as[@]}" "$bin/initdb" -D "$dir/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync
log "${as[@]}" "$bin/pg_ctl" -D "$dir/data" -l "$dir/data/log" -w -t 60 \
	-o "-c listen_addresses='' -c unix_socket_directories='$dir' -c fsync=off -c max_connections=200" start

echo "postgres:///postgres?host=$dir&user=postgres"
cat >/dev/null
