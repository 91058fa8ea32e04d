package chaos

import (
	"slices"
	"testing"
	"time"
)

const second = time.Second

func TestOnlyPodsThatChaosTouchedAreExcused(t *testing.T) {
	now := time.Unix(100, 0)
	tests := map[string]struct {
		before  func(j *Judge)
		excused bool
	}{
		"nobody touched it":             {before: func(*Judge) {}},
		"another one was touched":       {before: func(j *Judge) { j.Hold("other") }},
		"its rules are being rewritten": {before: func(j *Judge) { j.Hold("pod") }, excused: true},
		"they were, and nobody has repaired them": {
			before:  func(j *Judge) { j.Hold("pod"); j.Release("pod", 0) },
			excused: true,
		},
		"they were repaired just now": {
			before:  func(j *Judge) { j.Hold("pod"); j.Release("pod", 0); j.Repaired("pod", second, now.Add(-second/2)) },
			excused: true,
		},
		"they were repaired":     {before: func(j *Judge) { j.Hold("pod"); j.Release("pod", 0); j.Repaired("pod", second, now.Add(-2*second)) }},
		"its namespace has gone": {before: func(j *Judge) { j.Hold("pod"); j.Release("pod", 0); j.Gone("pod", now.Add(-2*second)) }},
		"a repair of what is not released": {
			before:  func(j *Judge) { j.Hold("pod"); j.Repaired("pod", second, now.Add(-2*second)) },
			excused: true,
		},
		"one of two who hold it has released it": {
			before: func(j *Judge) {
				j.Hold("pod")
				j.Hold("pod")
				j.Release("pod", 0)
				j.Repaired("pod", second, now.Add(-2*second))
			},
			excused: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := NewJudge(10 * second)
			tt.before(j)
			if got := j.Direct(Outbound, "pod", "seen", now); got != tt.excused || len(j.Faults()) > 0 == tt.excused {
				t.Errorf("excused: %t, want %t; faults: %v", got, tt.excused, j.Faults())
			}
			if c := j.Counts(); c.Excused[Outbound]+c.Direct[Outbound] != 1 || c.Excused[Outbound] == 1 != tt.excused {
				t.Errorf("counted %+v", c)
			}
		})
	}
}

func TestARepairThatTakesLongerThanTheBoundIsToldOnce(t *testing.T) {
	j := NewJudge(10 * second)
	j.Hold("pod")
	if late := j.Overdue(100 * second); late != nil {
		t.Errorf("overdue before its release: %v", late)
	}
	j.Release("pod", 100*second)
	if late := j.Overdue(110 * second); late != nil {
		t.Errorf("overdue in time: %v", late)
	}
	if late := j.Overdue(111 * second); !slices.Equal(late, []string{"pod"}) {
		t.Errorf("overdue is %v, want the pod", late)
	}
	if late := j.Overdue(112 * second); late != nil {
		t.Errorf("told again: %v", late)
	}
	j.Repaired("pod", 115*second, time.Unix(0, 0))
	if c := j.Counts(); c.Repairs != 1 || c.WorstRepair != 15*second {
		t.Errorf("counted %+v, want one repair of 15 s", c)
	}
	// The clock starts anew with the next change.
	j.Hold("pod")
	j.Release("pod", 200*second)
	if late := j.Overdue(211 * second); len(late) != 1 {
		t.Errorf("the next one is overdue: %v", late)
	}
}
