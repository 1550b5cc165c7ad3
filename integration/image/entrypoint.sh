#!/bin/sh
# Starts one ZooKeeper server from environment variables, with the names and defaults of the
# official zookeeper image, so that tests need not know which of the two images they run.
set -eu

conf_dir=/conf
data_dir=/data
log_dir=/datalog
conf=$conf_dir/zoo.cfg

# A restarted container keeps the configuration of its first start: a running ensemble may have
# rewritten it (reconfig), and that must not be undone.
if [ ! -f "$conf" ]; then
	{
		echo "dataDir=$data_dir"
		echo "dataLogDir=$log_dir"
		echo "tickTime=${ZOO_TICK_TIME:-2000}"
		echo "initLimit=${ZOO_INIT_LIMIT:-5}"
		echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
		echo "autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}"
		echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}"
		echo "maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}"
		echo "standaloneEnabled=${ZOO_STANDALONE_ENABLED:-true}"
		echo "admin.enableServer=${ZOO_ADMINSERVER_ENABLED:-false}"
		echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}"
		for line in ${ZOO_CFG_EXTRA:-}; do
			echo "$line"
		done
		for server in ${ZOO_SERVERS:-server.1=localhost:2888:3888;2181}; do
			echo "$server"
		done
	} >"$conf"
fi

if [ ! -f "$data_dir/myid" ]; then
	echo "${ZOO_MY_ID:-1}" >"$data_dir/myid"
fi

# The archive of parsed classes halves the start on a slow machine. The JVM goes on without it when
# JVMFLAGS ask for something it does not fit.
cds=
if [ -f /opt/zookeeper/classes.jsa ]; then
	cds=-XX:SharedArchiveFile=/opt/zookeeper/classes.jsa
fi

# shellcheck disable=SC2086 # the flags are a list of words
set -- java \
	-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto $cds \
	-Xmx"${ZK_SERVER_HEAP:-256}"m \
	-Dorg.slf4j.simpleLogger.showDateTime=true \
	"-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS" \
	-Dorg.slf4j.simpleLogger.showShortLogName=true \
	-Dzookeeper.audit.enable=false \
	${JVMFLAGS:-} \
	-cp "/opt/zookeeper/lib/*" \
	org.apache.zookeeper.server.quorum.QuorumPeerMain "$conf"

# exec, because the server must be process 1: signals for the container are meant for the JVM.
if [ "$(id -u)" = 0 ]; then
	chown -R zookeeper:zookeeper "$conf_dir" "$data_dir" "$log_dir"
	exec setpriv --reuid zookeeper --regid zookeeper --clear-groups "$@"
fi
exec "$@"
