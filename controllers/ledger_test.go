package controllers

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"istio-pod-network-controller/internal/podnet"
)

func box(id string, attempt uint32, created int64) podnet.Sandbox {
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: id, Attempt: attempt, CreatedAt: created}
	if id != "" {
		s.NetNS = "/netns/" + id
	}
	return s
}

// neighbours are sandboxes of other pods than box's, whose names are alike.
func neighbours() []podnet.Sandbox {
	return []podnet.Sandbox{{Namespace: "shop", Name: "cart-2", UID: "uid-2", ID: "n2"}, {Namespace: "other", Name: "cart", UID: "uid-3", ID: "n3"}}
}

func TestWhatTheLedgerRemembersOfAPod(t *testing.T) {
	rules := &compiled{}
	programmed := func(s podnet.Sandbox) Entry { return Entry{Sandbox: s, State: Programmed, compiled: rules} }
	for name, c := range map[string]struct {
		do   func(l *Ledger)
		want []Entry
	}{
		"a sandbox": {do: func(l *Ledger) { l.Put(programmed(box("a", 0, 1))) }, want: []Entry{programmed(box("a", 0, 1))}},
		"the newer one": {
			do:   func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.Put(programmed(box("b", 1, 2))) },
			want: []Entry{programmed(box("b", 1, 2))},
		},
		"the newer one, though the older one is seen later": {
			do:   func(l *Ledger) { l.Put(programmed(box("b", 1, 2))); l.Put(programmed(box("a", 0, 3))) },
			want: []Entry{programmed(box("b", 1, 2))},
		},
		"the latest reported, if their ages are unknown": {
			do:   func(l *Ledger) { l.Put(programmed(box("b", 0, 0))); l.Put(programmed(box("a", 0, 0))) },
			want: []Entry{programmed(box("a", 0, 0))},
		},
		"a failure keeps the rules": {
			do:   func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.Mark(box("", 0, 0), FailedPod, true) },
			want: []Entry{{Sandbox: box("a", 0, 1), State: FailedPod, compiled: rules, Retry: true}},
		},
		"a failure in a new sandbox knows of none": {
			do:   func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.Mark(box("b", 1, 2), FailedPod, false) },
			want: []Entry{{Sandbox: box("b", 1, 2), State: FailedPod}},
		},
		"a failure in an older sandbox is not the pod's": {
			do:   func(l *Ledger) { l.Put(programmed(box("b", 1, 2))); l.Mark(box("a", 0, 1), FailedPod, true) },
			want: []Entry{programmed(box("b", 1, 2))},
		},
		"a failure before a sandbox was found": {
			do:   func(l *Ledger) { l.Mark(box("", 0, 0), FailedPod, true) },
			want: []Entry{{Sandbox: box("", 0, 0), State: FailedPod, Retry: true}},
		},
		"a failure in a sandbox whose path is known by now": {
			do: func(l *Ledger) {
				l.Put(Entry{Sandbox: podnet.Sandbox{UID: "uid-1", ID: "a"}})
				l.Mark(box("a", 0, 1), FailedPod, false)
			},
			want: []Entry{{Sandbox: box("a", 0, 1), State: FailedPod}},
		},
		"a retry keeps all": {
			do:   func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.Mark(box("", 0, 0), "", true) },
			want: []Entry{{Sandbox: box("a", 0, 1), State: Programmed, compiled: rules, Retry: true}},
		},
		"a success ends the retries": {
			do:   func(l *Ledger) { l.Mark(box("", 0, 0), "", true); l.Put(programmed(box("a", 0, 1))) },
			want: []Entry{programmed(box("a", 0, 1))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLedger(t, c.do, c.want)
		})
	}
}

func TestLedger_sandboxOrPodGoes_isForgotten(t *testing.T) {
	rules := &compiled{}
	programmed := func(s podnet.Sandbox) Entry { return Entry{Sandbox: s, State: Programmed, compiled: rules} }
	for name, c := range map[string]struct {
		do   func(l *Ledger)
		want []Entry
	}{
		"a sandbox that is gone": {do: func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.Forget("a") }},
		"a failed pod's sandbox that is gone": {
			do:   func(l *Ledger) { l.Mark(box("a", 0, 1), FailedPod, true); l.Forget("a") },
			want: []Entry{{Sandbox: box("", 0, 0), State: FailedPod}},
		},
		"a rejected pod's sandbox that is gone": {
			do:   func(l *Ledger) { l.Mark(box("a", 0, 1), InvalidPod, false); l.Forget("a") },
			want: []Entry{{Sandbox: box("", 0, 0), State: InvalidPod}},
		},
		"a failed pod's next sandbox": {
			do: func(l *Ledger) {
				l.Mark(box("a", 0, 1), FailedPod, true)
				l.Forget("a")
				l.Put(programmed(box("b", 1, 2)))
			},
			want: []Entry{programmed(box("b", 1, 2))},
		},
		"a failed pod that is gone": {do: func(l *Ledger) { l.Mark(box("a", 0, 1), FailedPod, true); l.Forget("a"); l.ForgetPod("uid-1") }},
		"a pod that is gone":        {do: func(l *Ledger) { l.Put(programmed(box("a", 0, 1))); l.ForgetPod("uid-1") }},
		"no sandbox is not that of a pod that has none": {
			do:   func(l *Ledger) { l.Mark(box("", 0, 0), "", true); l.Forget("") },
			want: []Entry{{Sandbox: box("", 0, 0), Retry: true}},
		},
		"an older sandbox that goes": {
			do: func(l *Ledger) {
				l.Put(programmed(box("a", 0, 1)))
				l.Put(programmed(box("b", 1, 2)))
				l.Forget("a")
			},
			want: []Entry{programmed(box("b", 1, 2))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLedger(t, c.do, c.want)
		})
	}
}

func TestLedger_others_areOfTheNameAndNotOfThePod(t *testing.T) {
	l := NewLedger()
	for _, s := range append(neighbours(), box("a", 0, 1)) {
		l.Put(Entry{Sandbox: s, State: Programmed})
	}
	if got := l.Others("shop", "cart", ""); len(got) != 1 || got[0].Sandbox != box("a", 0, 1) {
		t.Errorf("got %+v", got)
	}
	if got := l.Others("shop", "cart", "uid-1"); len(got) != 0 {
		t.Errorf("the pod itself: %+v", got)
	}
}

// checkLedger compares what a ledger remembers, and that its indices hold nothing more.
func checkLedger(t *testing.T, do func(*Ledger), want []Entry) {
	t.Helper()
	l := NewLedger()
	do(l)
	options := cmp.Options{
		cmp.AllowUnexported(Entry{}), cmpopts.IgnoreFields(Entry{}, "checked"), cmp.Comparer(func(a, b *compiled) bool { return a == b }), cmpopts.EquateComparable(Findings{}, hold{}), cmpopts.EquateEmpty(),
		cmpopts.SortSlices(func(a, b Entry) bool { return a.Sandbox.UID < b.Sandbox.UID }),
	}
	if d := cmp.Diff(want, l.Entries(), options); d != "" {
		t.Error(d)
	}
}

func BenchmarkLedger(b *testing.B) {
	for _, pods := range []int{10, 500} {
		b.Run(strconv.Itoa(pods), func(b *testing.B) {
			l := NewLedger()
			for i := range pods {
				s := podnet.Sandbox{Namespace: "shop", Name: strconv.Itoa(i), UID: strconv.Itoa(i), ID: "s" + strconv.Itoa(i)}
				l.Put(Entry{Sandbox: s, State: Programmed})
			}
			s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid", ID: "sandbox"}
			for b.Loop() {
				l.Put(Entry{Sandbox: s, State: Programmed})
				l.Of("uid")
				l.Forget("sandbox")
			}
		})
	}
}

// size returns the number of entries.
func (l *Ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pods)
}
