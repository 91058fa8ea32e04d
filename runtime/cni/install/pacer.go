package install

import "time"

// pacer limits rewrites of a file that another project also writes. The first rewrite is made at once. Within the window, each further
// rewrite waits twice as long as the previous rewrite did, and there are at most max.
type pacer struct {
	first, window time.Duration
	max           int
	rewrites      []time.Time
}

// wait returns how long the next rewrite has to wait, and whether the reason is that max were made.
func (p *pacer) wait(now time.Time) (d time.Duration, exhausted bool) {
	for len(p.rewrites) > 0 && now.Sub(p.rewrites[0]) >= p.window {
		p.rewrites = p.rewrites[1:]
	}
	n := len(p.rewrites)
	switch {
	case n == 0:
		return 0, false
	case n >= p.max:
		return p.rewrites[n-p.max].Add(p.window).Sub(now), true
	}
	return max(0, p.rewrites[n-1].Add(p.first<<(n-1)).Sub(now)), false
}

func (p *pacer) record(now time.Time) { p.rewrites = append(p.rewrites, now) }
