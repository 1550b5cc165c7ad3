package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/internal/hosts"
)

// doctorCmd is zklock doctor.
type doctorCmd struct {
	JSON   bool `name:"json" help:"Print JSON."`
	Proofs int  `default:"9" placeholder:"9" help:"How many small writes to measure. Default ${default}."`

	ensembleFlags
}

// Help is what zklock doctor --help says at length.
func (*doctorCmd) Help() string {
	return `Looks whether this ensemble, with these settings, is good for locks. Every line is ok,
warn or fail, and says what to do. It makes a few nodes of its own below --root and
removes them. Exit code 1 if a line says fail, 69 if no server can be used.

    zklock doctor --servers zk1,zk2,zk3 --session-timeout 12s`
}

// Validate is called by kong.
func (c *doctorCmd) Validate() error {
	if c.Proofs < 1 || c.Proofs > 1000 {
		return fmt.Errorf("--proofs %d: has to be from 1 to 1000", c.Proofs)
	}
	return nil
}

// finding is one line.
type finding struct {
	Verdict string `json:"verdict"` // ok, warn or fail
	About   string `json:"about"`
	Text    string `json:"text"`
	Advice  string `json:"advice,omitempty"`
}

// findings are what is known so far.
type findings []finding

func (f *findings) okf(about, format string, args ...any) {
	*f = append(*f, finding{"ok", about, fmt.Sprintf(format, args...), ""})
}

func (f *findings) warn(about, text, advice string) {
	*f = append(*f, finding{"warn", about, text, advice})
}

func (f *findings) fail(about, text, advice string) {
	*f = append(*f, finding{"fail", about, text, advice})
}

func (f *findings) has(verdict string) bool {
	return slices.ContainsFunc(*f, func(x finding) bool { return x.Verdict == verdict })
}

// Run is called by kong.
func (c *doctorCmd) Run(std *streams) error {
	ctx, stop := interactive()
	defer stop()
	cfg, err := c.config(io.Discard)
	if err != nil { // before anything is asked
		return err
	}
	list, err := hosts.Parse([]string{c.Servers})
	if err != nil {
		return usagef("--servers: %w", err)
	}
	client, err := c.open(ctx, std.err)
	if exitCode(err) == exitUsage { // not anything to examine
		return err
	}
	d := &doctor{c: c, servers: c.askServers(ctx, list.Addrs), acl: cfg.ACL}
	if d.acl == nil {
		d.acl = zk.WorldACL(zk.PermAll)
	}
	d.checkServers()
	if err != nil {
		d.fail("session", strings.ReplaceAll(err.Error(), "\n", "; "), "see whether a server listens at these addresses, and whether a firewall is in between")
	} else {
		defer func() { _ = client.Close() }()
		if d.v, err = newViewer(client, &c.ensembleFlags); err != nil {
			return err
		}
		for _, check := range []func(context.Context){d.checkSession, d.checkRoot, d.checkContainers, d.checkWrites, d.checkLeftovers} {
			check(ctx)
		}
		d.removeParents(ctx)
	}
	if err := c.print(std.out, d.findings); err != nil {
		return err
	}
	switch {
	case client == nil:
		return &exitError{code: exitCode(err)}
	case d.has("fail"):
		return &exitError{code: exitFailed}
	}
	return nil
}

func (c *doctorCmd) print(out io.Writer, fs findings) error {
	if c.JSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(fs)
	}
	for _, f := range fs {
		fmt.Fprintf(out, "%-4s  %s: %s\n", f.Verdict, f.About, f.Text)
		if f.Advice != "" {
			fmt.Fprintf(out, "      -> %s\n", f.Advice)
		}
	}
	return nil
}

// doctor is one examination.
type doctor struct {
	findings
	c       *doctorCmd
	servers []serverSays
	v       *viewer
	acl     []zk.ACL      // of what is made
	made    []string      // above keys, with the chroot; those nearest to the root first
	tick    time.Duration // 0 if no server says
}

// checkServers looks at what the servers say of themselves.
func (d *doctor) checkServers() {
	versions, modes := map[string][]string{}, map[string]int{}
	for _, s := range d.servers {
		switch {
		case s.err != nil:
			d.fail("server "+s.addr, s.err.Error(), "start it, or take it out of --servers")
		case s.srvr == "":
			d.warn("server "+s.addr, "does not answer the four-letter word srvr", "set 4lw.commands.whitelist=srvr,mntr,conf on it; metrics and doctor need them")
		default:
			version, mode := field(s.srvr, "Zookeeper version: "), field(s.srvr, "Mode: ")
			version, _, _ = strings.Cut(version, ",")
			version, _, _ = strings.Cut(version, "-")
			versions[version] = append(versions[version], s.addr)
			modes[mode]++
			d.okf("server "+s.addr, "%s, ZooKeeper %s, answers in %v", mode, version, s.took.Round(10*time.Microsecond))
		}
	}
	if len(versions) > 1 {
		d.warn("versions", fmt.Sprintf("the servers run different ones: %v", versions), "finish the upgrade")
	}
	switch up := modes["leader"] + modes["follower"]; {
	case modes["standalone"] > 0 && len(d.servers) > 1:
		d.fail("quorum", "a server is standalone: these are not one ensemble", "give the servers of one ensemble only")
	case modes["standalone"] == 1:
		d.warn("quorum", "a single server", "for anything but tests run three: with one, a restart stops all work")
	case up > 0 && modes["leader"] != 1:
		d.fail("quorum", fmt.Sprintf("%d leaders among %v", modes["leader"], modes), "see the servers' logs")
	case up > 0:
		d.okf("quorum", "%d of %d servers in it", up, len(d.servers))
	}
	d.checkConf()
}

// checkConf compares what the servers are configured to.
func (d *doctor) checkConf() {
	seen := map[string][]string{}
	asked := 0
	for _, s := range d.servers {
		if s.conf == "" {
			continue
		}
		asked++
		for _, name := range []string{"tickTime", "minSessionTimeout", "maxSessionTimeout", "syncLimit"} {
			if value := field(s.conf, name+"="); value != "" && !slices.Contains(seen[name], value) {
				seen[name] = append(seen[name], value)
			}
		}
	}
	if asked == 0 {
		d.warn("four-letter words", "no server answers conf, so its tickTime is not known", "set 4lw.commands.whitelist=srvr,mntr,conf, or see to it that --tick-time is not smaller than the servers'")
		return
	}
	d.okf("four-letter words", "%d of %d servers answer srvr and conf", asked, len(d.servers))
	for _, name := range []string{"tickTime", "minSessionTimeout", "maxSessionTimeout"} {
		if len(seen[name]) > 1 {
			d.fail(name, fmt.Sprintf("differs from server to server: %s ms", strings.Join(seen[name], ", ")), "make it the same on all; a client that changes servers would be granted another timeout")
		}
	}
	if ms, err := strconv.Atoi(strings.Join(seen["tickTime"], "")); err == nil {
		d.tick = time.Duration(ms) * time.Millisecond
	}
}

// checkSession compares what was granted with what was asked for and is needed.
func (d *doctor) checkSession(context.Context) {
	granted := d.v.client.SessionTimeout()
	if granted == d.c.SessionTimeout {
		d.okf("session timeout", "%v, as asked", granted)
	} else {
		d.warn("session timeout", fmt.Sprintf("%v was granted, %v asked for", granted, d.c.SessionTimeout),
			"servers grant 2 to 20 ticks unless minSessionTimeout and maxSessionTimeout say otherwise; everything here uses what was granted")
	}
	assumed := d.c.TickTime
	if assumed == 0 {
		assumed = min(3*time.Second, granted/2)
	}
	switch {
	case d.tick == 0: // said before
	case d.tick > assumed:
		d.fail("tick", fmt.Sprintf("the servers' tickTime is %v, and %v is assumed: a lock could be trusted for too long", d.tick, assumed),
			fmt.Sprintf("give --tick-time %v (twice that behind observer masters)", d.tick))
	case granted < 4*d.tick:
		d.warn("tick", fmt.Sprintf("the session timeout of %v is less than four ticks of %v", granted, d.tick), "a longer --session-timeout leaves more time for a slow answer")
	default:
		d.okf("tick", "%v; %v is assumed", d.tick, assumed)
	}
}

// checkRoot looks at the node that keys are in.
func (d *doctor) checkRoot(ctx context.Context) {
	n, err := d.v.get(ctx, d.v.root)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		d.okf("root", "%s is not there yet; the first lock makes it", d.c.Root)
		return
	case err != nil:
		d.fail("root", fmt.Sprintf("%s: %v", d.c.Root, err), "give credentials with --auth, or have the access list changed")
		return
	}
	d.checkACL(ctx)
	names, err := d.v.children(ctx, d.v.root)
	if err != nil {
		d.fail("root", fmt.Sprintf("the keys below %s cannot be listed: %v", d.c.Root, err), "raise jute.maxbuffer for whoever lists, or spread keys over several roots")
		return
	}
	size := 0
	for _, name := range names {
		size += len(name) + 4
	}
	const limit = 0xfffff // jute.maxbuffer's default
	if size > limit/2 {
		d.warn("root", fmt.Sprintf("listing the %d keys of %s takes %d bytes, of %d by default", n.stat.NumChildren, d.c.Root, size, limit),
			"shorten the retention of records, or spread keys over several roots; locks themselves do not list it")
	} else {
		d.okf("root", "%s has %d keys, %d bytes to list", d.c.Root, n.stat.NumChildren, size)
	}
}

// checkACL looks who may do what with the root.
func (d *doctor) checkACL(ctx context.Context) {
	acl, err := ask(ctx, func() ([]zk.ACL, error) {
		acl, _, err := d.v.client.Conn().GetACL(d.v.whole(d.v.root))
		return acl, err
	})
	switch {
	case err != nil:
		d.warn("access", fmt.Sprintf("the access list of %s cannot be read: %v", d.c.Root, err), "give credentials with --auth")
	case slices.ContainsFunc(acl, func(a zk.ACL) bool { return a.Scheme == "world" && a.Perms&^zk.PermRead != 0 }):
		d.okf("access", "everybody who reaches the servers may take and remove locks below %s; --auth and --acl creator would change that", d.c.Root)
	default:
		d.okf("access", "%s is restricted: %v", d.c.Root, acl)
	}
}

// checkContainers tries whether the ensemble removes parents of locks by itself.
func (d *doctor) checkContainers(ctx context.Context) {
	path := d.v.chroot + d.v.root + "/zklock-doctor-" + uuid.NewString()
	err := d.makeParents(ctx, path)
	if err == nil {
		_, err = ask(ctx, func() (string, error) {
			return d.v.client.Conn().CreateContainer(path, nil, zk.FlagContainer, d.acl)
		})
	}
	if err != nil {
		d.warn("containers", fmt.Sprintf("cannot be made: %v", err), "ZooKeeper 3.5 and later remove the empty nodes of locks by themselves; before, they stay")
		return
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	if err := d.v.delete(ctx, path); err != nil {
		d.warn("containers", fmt.Sprintf("one was made and cannot be removed: %v", err), "delete "+path)
		return
	}
	d.okf("containers", "known: nodes of keys that nobody uses go by themselves")
}

// makeParents makes the nodes above a path, with the access list that a lock would give
// them: if somebody begins to use them meanwhile, they stay. It looks first, as a lock
// does: to create what is there may be refused to those who may use it.
func (d *doctor) makeParents(ctx context.Context, path string) error {
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		_, err := ask(ctx, func() (string, error) {
			conn := d.v.client.Conn()
			if there, _, err := conn.Exists(path[:i]); there || err != nil {
				return "", cmp.Or(err, zk.ErrNodeExists)
			}
			return conn.Create(path[:i], nil, 0, d.acl)
		})
		switch {
		case err == nil:
			d.made = append(d.made, path[:i])
		case !errors.Is(err, zk.ErrNodeExists):
			return err
		}
	}
	return nil
}

// removeParents removes the nodes that makeParents has made and nobody uses.
func (d *doctor) removeParents(ctx context.Context) {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	for _, path := range slices.Backward(d.made) {
		if err := d.v.delete(ctx, path); err != nil {
			if !errors.Is(err, zk.ErrNotEmpty) {
				d.warn("root", fmt.Sprintf("%s was made and cannot be removed: %v", path, err), "delete it if nobody uses it")
			}
			return
		}
	}
}

// afterwards is for what has to be removed also when somebody ends the examination.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// checkWrites measures proofs under a lock of its own, and compares the clocks.
func (d *doctor) checkWrites(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*d.v.client.SessionTimeout(), expired("the ensemble takes too long"))
	defer cancel()
	mutex, err := zklock.NewInterProcessMutex(d.v.client, d.v.root+"/zklock-doctor-"+uuid.NewString())
	if err != nil {
		d.fail("lock", err.Error(), "see --root")
		return
	}
	before := time.Now()
	lease, err := mutex.Acquire(ctx)
	if err != nil {
		d.fail("lock", err.Error(), "the access list has to let this client read, create and delete below "+d.c.Root)
		return
	}
	after := time.Now()
	defer func() {
		ctx, cancel := afterwards(ctx)
		defer cancel()
		_ = lease.Release(ctx)
		_ = d.v.delete(ctx, d.v.chroot+mutex.Path())
	}()
	d.checkClock(ctx, lease, before, after)
	var took []time.Duration
	for range d.c.Proofs {
		begun := time.Now()
		if err := lease.Verify(ctx); err != nil {
			d.fail("writes", err.Error(), "see whether the servers are in step, and their disks")
			return
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	median, most := took[len(took)/2], took[len(took)-1]
	text := fmt.Sprintf("%d proofs took %v (median) to %v", len(took), median.Round(10*time.Microsecond), most.Round(10*time.Microsecond))
	switch due := d.v.client.SessionTimeout() / 6; {
	case most > due:
		d.fail("writes", text, fmt.Sprintf("one is due every %v, and a later answer suspends every lock: give ZooKeeper a disk of its own for dataLogDir, or ask for a longer --session-timeout", due))
	case most > due/2:
		d.warn("writes", text, fmt.Sprintf("one is due every %v: that is close; see the servers' disks, or ask for a longer --session-timeout", due))
	default:
		d.okf("writes", "%s; one is due every %v", text, due)
	}
}

// checkClock compares this machine's clock with the server's.
func (d *doctor) checkClock(ctx context.Context, lease *zklock.Lease, before, after time.Time) {
	n, err := d.v.get(ctx, strings.TrimPrefix(lease.Path(), d.v.chroot))
	if err != nil {
		return // the writes say more
	}
	made := time.UnixMilli(n.stat.Ctime)
	off := time.Duration(0)
	switch {
	case made.Before(before):
		off = made.Sub(before)
	case made.After(after):
		off = made.Sub(after)
	}
	if off.Abs() > 5*time.Second {
		d.warn("clock", fmt.Sprintf("the ensemble's is %v off this machine's", off.Round(time.Millisecond)), "no lock depends on it; the ages that ls shows and the retention of records do: see to NTP")
		return
	}
	d.okf("clock", "the ensemble's is within %v of this machine's", max(off.Abs(), after.Sub(before), time.Millisecond).Round(time.Millisecond))
}

// leftoverAge is how old an empty node has to be to be called a leftover.
const leftoverAge = time.Hour

// leftover says whether a node is one that nobody uses and nobody removes. A container
// looks like any other node from outside, and one that has just been used goes within a
// minute or two.
func leftover(stat *zk.Stat, now time.Time) bool {
	return stat.NumChildren == 0 && stat.DataLength == 0 && now.Sub(time.UnixMilli(stat.Ctime)) > leftoverAge
}

// leftoverSample is how many keys are looked at for leftovers.
const leftoverSample = 500

// checkLeftovers looks for nodes that nobody uses and nobody removes.
func (d *doctor) checkLeftovers(ctx context.Context) {
	names, err := d.v.children(ctx, d.v.root)
	if err != nil {
		return // said before
	}
	slices.Sort(names)
	looked, left := 0, 0
	for _, name := range names[:min(len(names), leftoverSample)] {
		n, err := d.v.get(ctx, d.v.root+"/"+name)
		if err != nil {
			continue
		}
		looked++
		if leftover(n.stat, time.Now()) {
			left++
		}
	}
	if left > 0 {
		d.warn("leftovers", fmt.Sprintf("%d of %d keys looked at are empty nodes that are more than an hour old", left, looked), "some are in use again and again; the others, which older clients and other recipes make, stay until zklock rm KEY")
		return
	}
	d.okf("leftovers", "none among %d keys", looked)
}
