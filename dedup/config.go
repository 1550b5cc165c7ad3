package dedup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Policy says what a call does that finds a record whose outcome is unknown: fn may
// have run, its process died or lost the claim, and nothing was stored.
type Policy int

const (
	// Refuse returns ErrIndeterminate, until somebody calls Resolve. The default.
	Refuse Policy = iota
	// Reexecute runs fn again, with Attempt + 1 and a larger token. For work that is
	// itself idempotent, or that a store fences by the token.
	Reexecute
)

// String returns "Refuse" or "Reexecute".
func (p Policy) String() string {
	switch p {
	case Refuse:
		return "Refuse"
	case Reexecute:
		return "Reexecute"
	default:
		return fmt.Sprintf("Policy(%d)", int(p))
	}
}

// Codec turns outcomes into bytes and back. Both methods are called from many
// goroutines.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error // v is a pointer
}

// JSON is encoding/json, the default Codec.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// Raw is an outcome that goes into the record as it is, and comes from it as it is,
// whatever the Codec: for callers that encode by themselves.
type Raw []byte

// marshal encodes an outcome.
func (c *Config) marshal(v any) ([]byte, error) {
	if raw, ok := v.(Raw); ok {
		return raw, nil
	}
	return c.Codec.Marshal(v)
}

// unmarshal decodes an outcome. v is a pointer.
func (c *Config) unmarshal(data []byte, v any) error {
	if raw, ok := v.(*Raw); ok {
		*raw = bytes.Clone(data) // duplicates in one process share the record
		return nil
	}
	return c.Codec.Unmarshal(data, v)
}

// Defaults of Config.
const (
	DefaultRetention     = 24 * time.Hour
	DefaultWaitLimit     = 30 * time.Second
	DefaultMaxOutcome    = 256 << 10
	DefaultSweepInterval = time.Minute
)

// Config says how a Guard works. The zero value of every field is the documented
// default.
type Config struct {
	// Root is the path that records are kept under, without the chroot. Their index is
	// beside it, at Root + "-expiry". All guards of one Root share their records.
	// Default: the client's Config.Root, /dedup. Only for New.
	Root string

	// Retention is how long a record is kept after its last change; then it may be
	// swept, and the key runs again. It has to be longer than callers retry, and
	// longer than WaitLimit. At least 1 s. A record keeps the retention of the guard that
	// made it. Default 24 h.
	Retention time.Duration

	// WaitLimit is how long a call waits for somebody else who works on the key,
	// before ErrInProgress. Not longer than Retention. Default: the smaller of 30 s and
	// half of Retention.
	WaitLimit time.Duration

	// Policy is for records whose outcome is unknown. Default Refuse.
	Policy Policy

	// Codec encodes outcomes. Default JSON.
	Codec Codec

	// MaxOutcome is the largest outcome that is stored, in bytes after encoding. What the
	// store can take (with ZooKeeper a little under jute.maxbuffer) bounds it too.
	// Default 256 KiB.
	MaxOutcome int

	// ClaimFirst makes the guard write before it reads for keys that it has not seen
	// lately: a fresh key then costs two writes and no read, and a duplicate that comes
	// to another process a failed write more. For streams in which duplicates are rare.
	// Default: look first.
	ClaimFirst bool

	// SweepInterval is how often some process of all that share Root sweeps; each asks
	// that often whether it should. Negative: this guard never does. Default 1 min.
	SweepInterval time.Duration

	// SweepUnknown also sweeps records whose outcome is unknown. With Refuse that turns
	// into a second run after the retention. Default: they stay until resolved.
	SweepUnknown bool

	// Owner is written into records for people to read, at most 1 KiB. Default: host
	// name and process id.
	Owner string

	// Now is the wall clock. It files index entries and judges late retries; an error
	// of an hour sweeps nothing early, since the sweeper uses the ensemble's clock.
	// Default time.Now.
	Now func() time.Time

	// Logger gets one line for each transition of a key, with the field event: committed,
	// duplicate_detected, evicted (level Debug, unless it was too early), resolved,
	// indeterminate; and one for each pass that removed something: swept. Default: the
	// client's.
	Logger *slog.Logger

	// Registerer gets the metrics. Default: the client's, if it has one. Guards that
	// share a Registerer share their metrics.
	Registerer prometheus.Registerer
}

const maxOwner = 1 << 10

// resolve checks a Config and fills in its defaults.
func (c Config) resolve() (Config, error) {
	bad := func(field string, value any, rule string) (Config, error) {
		return Config{}, invalid(ErrInvalidConfig, field, value, rule)
	}
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.WaitLimit == 0 {
		c.WaitLimit = min(DefaultWaitLimit, max(c.Retention/2, 0))
	}
	if c.MaxOutcome == 0 {
		c.MaxOutcome = DefaultMaxOutcome
	}
	if c.SweepInterval == 0 {
		c.SweepInterval = DefaultSweepInterval
	}
	switch {
	case c.Retention < time.Second:
		return bad("Retention", c.Retention, "it has to be at least 1s")
	case c.WaitLimit < 0:
		return bad("WaitLimit", c.WaitLimit, "it is negative; use NoWait for no wait")
	case c.Retention < c.WaitLimit:
		return bad("Retention", c.Retention, fmt.Sprintf("shorter than WaitLimit %v: a record could go while somebody waits for it", c.WaitLimit))
	case c.Policy != Refuse && c.Policy != Reexecute:
		return bad("Policy", c.Policy, "neither Refuse nor Reexecute")
	case c.MaxOutcome < 0:
		return bad("MaxOutcome", c.MaxOutcome, "it is negative")
	case len(c.Owner) > maxOwner:
		return bad("Owner", c.Owner, fmt.Sprintf("longer than %d bytes", maxOwner))
	}
	if c.Codec == nil {
		c.Codec = JSON
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// Option is an option of one call of Do.
type Option func(*callOptions) error

type callOptions struct {
	waitLimit time.Duration
	noWait    bool
	policy    Policy
	retention time.Duration
}

// WaitLimit replaces Config.WaitLimit for one call. It has to be positive and not
// longer than the retention.
func WaitLimit(d time.Duration) Option {
	return func(o *callOptions) error {
		if d <= 0 || d > o.retention {
			return invalid(ErrInvalidConfig, "WaitLimit", d, fmt.Sprintf("it has to be positive and at most the retention of %v", o.retention))
		}
		o.waitLimit, o.noWait = d, false
		return nil
	}
}

// NoWait makes one call return ErrInProgress at once when somebody else works on the
// key.
func NoWait() Option {
	return func(o *callOptions) error { o.noWait = true; return nil }
}

// WithPolicy replaces Config.Policy for one call.
func WithPolicy(p Policy) Option {
	return func(o *callOptions) error {
		if p != Refuse && p != Reexecute {
			return invalid(ErrInvalidConfig, "Policy", p, "neither Refuse nor Reexecute")
		}
		o.policy = p
		return nil
	}
}
