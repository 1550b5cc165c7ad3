package cases

// Size says how much is measured.
type Size struct {
	Rounds     int
	Operations int // of a round, one after the other
	Waiters    int // in one process, and in Processes together
	Processes  int
	Turns      int // that each waiter takes in a round
	Workers    int
	Cycles     int // of each worker in a round
	ManyKeys   int
	Duplicates int // at the same time
	Hundreds   int // how often they come in a round

	Crowds    []int // waiters on one path
	OwnCrowds []int // beyond what the peers are tried with
	Window    int   // hand-overs that are looked at in a crowd
	Leases    []int // held by an idle process
	IdleFor   int   // seconds
	Keys      int   // of dedup over a day
}

// Full takes some minutes. Short gives figures that mean nothing, and shows that all of it works.
var (
	Full = Size{
		Rounds: 10, Operations: 40, Waiters: 100, Processes: 10, Turns: 3, Workers: 64, Cycles: 10, ManyKeys: 1000, Duplicates: 100, Hundreds: 2,
		Crowds: []int{10, 100, 1000}, OwnCrowds: []int{10_000}, Window: 300, Leases: []int{0, 1, 100, 1000}, IdleFor: 24, Keys: 200_000,
	}
	Short = Size{
		Rounds: 1, Operations: 5, Waiters: 10, Processes: 2, Turns: 3, Workers: 8, Cycles: 2, ManyKeys: 16, Duplicates: 10, Hundreds: 1,
		Crowds: []int{10}, OwnCrowds: []int{100}, Window: 20, Leases: []int{0, 10}, IdleFor: 5, Keys: 1000,
	}
)
