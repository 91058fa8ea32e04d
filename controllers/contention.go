package controllers

import "time"

// Bounds of the pause between a repair and the next check, and what ends a contention.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	// contendedAfter is how many repairs make a pod contended.
	contendedAfter = 3
	// mostRepairs is how many repairs are counted: the pause has reached lastPause.
	mostRepairs = 10
	// calmChecks and calmTime are what ends a contention: so many checks in a row that find nothing, and so much time since the repair.
	calmChecks = 3
	calmTime   = time.Minute
)

// contention says when a pod is checked whose rules somebody else changes. It begins with a repair:
//
//   - the pause after the first repair is firstPause; each further repair doubles it, up to lastPause;
//   - each check that finds nothing brings the pause closer to the usual interval, by a factor of 2;
//   - after contendedAfter repairs the pod is contended;
//   - it ends after calmChecks and calmTime without a repair.
//
// For example, rules that are changed every second are repaired once a minute in the end. The
// zero value is no contention.
type contention struct {
	repairs, clean    int // clean counts the checks since the last repair
	repaired, checked time.Time
}

func (c contention) active() bool { return c.repairs > 0 }

// contended reports whether somebody keeps rewriting the rules.
func (c contention) contended() bool { return c.repairs >= contendedAfter }

// withRepair returns the contention after a check that has repaired something.
func (c contention) withRepair(now time.Time) contention {
	return contention{repairs: min(c.repairs+1, mostRepairs), repaired: now, checked: now}
}

// withoutRepair returns the contention after a check that has found nothing.
func (c contention) withoutRepair(now time.Time) contention {
	if !c.active() {
		return c
	}
	c.clean++
	c.checked = now
	if c.clean >= calmChecks && now.Sub(c.repaired) >= calmTime {
		return contention{}
	}
	return c
}

// next returns when the pod is to be checked again. usual is the interval of pods without contention; 0 means that there is none.
func (c contention) next(usual time.Duration) time.Time {
	if usual == 0 {
		usual = lastPause
	}
	pause := firstPause
	for range c.repairs - 1 {
		pause = min(2*pause, lastPause)
	}
	for range c.clean {
		if pause < usual {
			pause = min(2*pause, usual)
		} else {
			pause = max(pause/2, usual)
		}
	}
	return c.checked.Add(pause)
}
