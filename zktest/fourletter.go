package zktest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: the four-letter words ruok, srvr, stat, mntr, cons, dump, wchs, wchp, wchc, conf and
// isro. The others that the real server knows are answered as if they were not allowed. As there, wchs, wchp and wchc
// show the data watches only.

// serverStats counts messages for srvr and mntr.
type serverStats struct{ received, sent int64 }

// connStats is what cons tells of a connection, and the paths it watches.
type connStats struct {
	established    time.Time
	received, sent int64
	lastCxid       int64
	lastOp         Op
	lastZxid       int64
	watched        map[string]struct{}
	watchedData    bool // has ever set a data watch
}

// commands are the words that are not taken for the length of a connect request.
var commands = set("conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "hash", "isro", "mntr", "ruok", "srst",
	"srvr", "stat", "stmk", "wchc", "wchp", "wchs")

func isCommand(word string) bool {
	_, ok := commands[word]
	return ok
}

// command answers a four-letter word and ends the connection; mu is held.
func (c *conn) command(word string) {
	s := c.s
	s.stats.received++
	var b strings.Builder
	show := map[string]func(*strings.Builder){
		"srvr": func(b *strings.Builder) { s.showStat(b, false) },
		"stat": func(b *strings.Builder) { s.showStat(b, true) },
		"mntr": s.showMonitor,
		"cons": func(b *strings.Builder) { s.showConns(b, false); b.WriteString("\n") },
		"dump": s.showDump,
		"wchs": s.showWatchSummary,
		"wchp": s.showWatchesByPath,
		"wchc": s.showWatchesBySession,
		"conf": s.showConf,
		"isro": func(b *strings.Builder) { b.WriteString("rw") },
		"ruok": func(b *strings.Builder) { b.WriteString("imok") },
	}[word]
	allowed := slices.Contains(s.cfg.FourLetterWords, word) || slices.Contains(s.cfg.FourLetterWords, "*") || word == "srvr"
	switch {
	case !allowed || show == nil:
		fmt.Fprintf(&b, "%s is not executed because it is not in the whitelist.\n", word)
	case !s.serving() && word != "ruok":
		b.WriteString("This ZooKeeper instance is not currently serving requests\n")
	default:
		show(&b)
	}
	c.push(frame{b: []byte(b.String())})
	s.stats.sent++
	c.finish("four-letter word " + word)
}

func (s *Server) fullVersion() string {
	return s.cfg.Version + "-zktest, built on 01/01/2000 00:00 UTC"
}

func (s *Server) showStat(b *strings.Builder, clients bool) {
	fmt.Fprintf(b, "Zookeeper version: %s\n", s.fullVersion())
	if clients {
		b.WriteString("Clients:\n")
		s.showConns(b, true)
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "Latency min/avg/max: 0/0.0/0\nReceived: %d\nSent: %d\nConnections: %d\nOutstanding: 0\n",
		s.stats.received, s.stats.sent, len(s.conns))
	fmt.Fprintf(b, "Zxid: %#x\nMode: %s\nNode count: %d\n", uint64(s.tree.zxid), s.role(), s.tree.count())
	if s.role() == "leader" {
		b.WriteString("Proposal sizes last/min/max: -1/-1/-1\n")
	}
}

func (s *Server) showConns(b *strings.Builder, brief bool) {
	for _, c := range byID(s.conns) {
		fmt.Fprintf(b, " /%s[1](queued=%d,recved=%d,sent=%d", c.nc.RemoteAddr(), len(c.queue), c.stats.received, c.stats.sent)
		if !brief && c.session != 0 {
			fmt.Fprintf(b, ",sid=%#x,lop=%s,est=%d,to=%d", uint64(c.session), shortOp(c.stats.lastOp),
				c.stats.established.UnixMilli(), c.timeout.Milliseconds())
			if c.stats.lastCxid >= 0 {
				fmt.Fprintf(b, ",lcxid=%#x", c.stats.lastCxid)
			}
			fmt.Fprintf(b, ",lzxid=%#x,lresp=%d,llat=0,minlat=0,avglat=0,maxlat=0", uint64(c.stats.lastZxid), now())
		}
		b.WriteString(")\n")
	}
}

// shortOp is the name cons gives to a kind of request.
func shortOp(op Op) string {
	names := map[Op]string{
		0: "SESS", OpPing: "PING", OpMulti: "MULT", OpCreate: "CREA", OpCreate2: "CREA", OpCreateContainer: "CREA",
		OpCreateTTL: "CREA", OpDelete: "DELE", OpSetData: "SETD", OpSetACL: "SETA", OpGetACL: "GETA", OpSync: "SYNC",
		OpExists: "EXIS", OpGetData: "GETD", OpGetChildren: "GETC", OpGetChildren2: "GETC", OpSetWatches: "SETW",
		OpSetWatches2: "STW2", OpCloseSession: "CLOS", OpCheck: "CHEC", OpReconfig: "RECO",
	}
	if n, ok := names[op]; ok {
		return n
	}
	return "NA"
}

func (s *Server) showMonitor(b *strings.Builder) {
	line := func(key string, value any) { fmt.Fprintf(b, "zk_%s\t%v\n", key, value) }
	size, ephemerals := 0, 0
	for path, n := range s.tree.nodes {
		size += len(path) + len(n.data)
	}
	for _, paths := range s.tree.ephemerals {
		ephemerals += len(paths)
	}
	line("version", s.fullVersion())
	line("server_state", s.role())
	line("avg_latency", "0.0")
	line("max_latency", 0)
	line("min_latency", 0)
	line("packets_received", s.stats.received)
	line("packets_sent", s.stats.sent)
	line("num_alive_connections", len(s.conns))
	line("outstanding_requests", 0)
	line("znode_count", s.tree.count())
	line("watch_count", s.watches.len())
	line("ephemerals_count", ephemerals)
	line("approximate_data_size", size)
	line("global_sessions", len(s.cl.sessions))
	line("local_sessions", 0)
	if len(s.cl.servers) > 1 {
		line("quorum_size", len(s.cl.servers))
	}
	if s.role() == "leader" {
		followers := 0
		for _, f := range s.cl.servers {
			if f.follows(s) {
				followers++
			}
		}
		line("learners", followers)
		line("synced_followers", followers)
		line("synced_non_voting_followers", 0)
		line("synced_observers", 0)
		line("pending_syncs", 0)
	}
}

func (s *Server) showDump(b *strings.Builder) {
	b.WriteString("SessionTracker dump:\n")
	ids := slices.Sorted(maps.Keys(s.cl.sessions))
	if s.leads() {
		sets := map[int64][]int64{}
		for _, id := range ids {
			at := s.cl.sessions[id].expires.UnixMilli()
			sets[at] = append(sets[at], id)
		}
		fmt.Fprintf(b, "Session Sets (%d)/(%d):\n", len(sets), len(ids))
		for _, at := range slices.Sorted(maps.Keys(sets)) {
			fmt.Fprintf(b, "%d expire at %s:\n", len(sets[at]), time.UnixMilli(at).UTC().Format(time.UnixDate))
			for _, id := range sets[at] {
				fmt.Fprintf(b, "\t%#x\n", uint64(id))
			}
		}
	} else {
		fmt.Fprintf(b, "Global Sessions(%d):\n", len(ids))
		for _, id := range ids {
			fmt.Fprintf(b, "%#x\t%dms\n", uint64(id), s.cl.sessions[id].timeout.Milliseconds())
		}
	}
	b.WriteString("ephemeral nodes dump:\n")
	fmt.Fprintf(b, "Sessions with Ephemerals (%d):\n", len(s.tree.ephemerals))
	for _, id := range slices.Sorted(maps.Keys(s.tree.ephemerals)) {
		fmt.Fprintf(b, "%#x:\n", uint64(id))
		for _, path := range slices.Sorted(maps.Keys(s.tree.ephemerals[id])) {
			fmt.Fprintf(b, "\t%s\n", path)
		}
	}
	b.WriteString("Connections dump:\n")
	fmt.Fprintf(b, "Connections Sets (1)/(%d):\n", len(s.conns))
}

// dataWatchers lists who watches the data of which paths; who has no watch left is listed without any.
func (s *Server) dataWatchers() (byConn map[*conn][]string, total int) {
	byConn = map[*conn][]string{}
	for c := range s.conns {
		if c.stats.watchedData {
			byConn[c] = nil
		}
	}
	for path, conns := range s.watches.data {
		for c := range conns {
			byConn[c] = append(byConn[c], path)
			total++
		}
	}
	for c := range byConn {
		slices.Sort(byConn[c])
	}
	return byConn, total
}

func (s *Server) showWatchSummary(b *strings.Builder) {
	byConn, total := s.dataWatchers()
	fmt.Fprintf(b, "%d connections watching %d paths\nTotal watches:%d\n", len(byConn), len(s.watches.data), total)
}

func (s *Server) showWatchesByPath(b *strings.Builder) {
	for _, path := range slices.Sorted(maps.Keys(s.watches.data)) {
		fmt.Fprintf(b, "%s\n", path)
		for _, c := range byID(s.conns) {
			if _, ok := s.watches.data[path][c]; ok {
				fmt.Fprintf(b, "\t%#x\n", uint64(c.session))
			}
		}
	}
	b.WriteString("\n")
}

func (s *Server) showWatchesBySession(b *strings.Builder) {
	byConn, _ := s.dataWatchers()
	for _, c := range byID(s.conns) {
		if paths, ok := byConn[c]; ok {
			fmt.Fprintf(b, "%#x\n", uint64(c.session))
			for _, path := range paths {
				fmt.Fprintf(b, "\t%s\n", path)
			}
		}
	}
	b.WriteString("\n")
}

func (s *Server) showConf(b *strings.Builder) {
	port := s.Addr()[strings.LastIndexByte(s.Addr(), ':')+1:]
	fmt.Fprintf(b, "clientPort=%s\nsecureClientPort=-1\ndataDir=/zktest\ndataDirSize=0\ndataLogDir=/zktest\ndataLogSize=0\n", port)
	fmt.Fprintf(b, "tickTime=%d\nmaxClientCnxns=0\nminSessionTimeout=%d\nmaxSessionTimeout=%d\nclientPortListenBacklog=-1\nserverId=%d\n",
		s.cfg.TickTime.Milliseconds(), s.cfg.MinSessionTimeout.Milliseconds(), s.maxTimeout.Milliseconds(), s.id)
	if len(s.cl.servers) == 1 {
		return
	}
	fmt.Fprintf(b, "initLimit=10\nsyncLimit=%d\nelectionAlg=3\nelectionPort=3888\nquorumPort=2888\npeerType=0\nmembership: \n%s\n",
		s.cfg.SyncLimit, s.cl.configText())
}
