// Package boottime reads a clock that goes on while the system is suspended.
//
// Go's monotonic clock stands still during suspend on Linux, and the wall clock
// can be set. A trust deadline may be measured on neither: a laptop or a virtual
// machine that slept for a minute has to find its lease gone (S4 of package zklock).
package boottime

import "time"

// origin ties boot time to a wall-clock reading once, so that Now gives a
// time.Time that prints sensibly. Only differences between readings count.
var (
	originWall = time.Now().Round(0)
	originBoot = sinceBoot()
)

// Reading is the clock itself: the time since the system was started, suspend included.
// On Linux all processes of a machine read the same clock.
func Reading() time.Duration { return sinceBoot() }

// Now returns the current reading. It carries no monotonic part: two readings
// compare and subtract on the boot clock alone.
func Now() time.Time { return originWall.Add(sinceBoot() - originBoot) }
