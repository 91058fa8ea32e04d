package chaos

import (
	"math/rand/v2"
	"time"
)

// Moment is what a cluster is doing when its power is cut.
type Moment string

// The moments.
const (
	Idle     Moment = "idle"
	Starting Moment = "20 pods starting"
	Updating Moment = "update of the agent"
	Deleting Moment = "pod being deleted"
	Upgraded Moment = "proxy upgrade"
)

// Cut is one power cut.
type Cut struct {
	Moment Moment
	// After is the time between what makes the moment and the cut.
	After time.Duration
}

// latest is the largest time until a cut: what the moment began is over soon after.
var latest = map[Moment]time.Duration{
	Idle: time.Second, Starting: 4 * time.Second, Updating: 5 * time.Second, Deleting: 1500 * time.Millisecond, Upgraded: 3 * time.Second,
}

// Cuts is a pure function of its arguments: the same seed gives the same cuts. No moment comes again before each has come once.
func Cuts(seed uint64, n int) []Cut {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // cuts that can be repeated
	cuts := make([]Cut, 0, n)
	var moments []Moment
	for range n {
		if len(moments) == 0 {
			moments = []Moment{Idle, Starting, Updating, Deleting, Upgraded}
			r.Shuffle(len(moments), func(i, j int) { moments[i], moments[j] = moments[j], moments[i] })
		}
		m := moments[0]
		moments = moments[1:]
		const step = 50 * time.Millisecond
		cuts = append(cuts, Cut{Moment: m, After: step * time.Duration(r.IntN(int(latest[m]/step)+1))})
	}
	return cuts
}
