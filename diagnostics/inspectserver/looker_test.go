package inspectserver

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

func TestAMomentOfWorkOnAPodIsOutlasted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for busy, want := range map[int]bool{0: true, 3: true, 1000: false} {
			_, err := (&oneNode{busy: busy}).looker(fakeKernel{}).Document(t.Context(), "shop", "cart")
			if (err == nil) != want {
				t.Errorf("after %d calls that were refused: %v", busy, err)
			}
		}
	})
}

// At most two pods are looked at in parallel; others wait in line, and are sent away in time.
func TestALookWaitsItsTurnInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &oneNode{release: make(chan struct{})}
		l := node.looker(fakeKernel{})
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		refused := make(chan error, 4)
		for range cap(refused) {
			go func() {
				_, err := l.Document(ctx, "shop", "cart")
				refused <- err
			}()
		}
		synctest.Wait()
		if got := node.entered.Load(); got != atOnce {
			t.Errorf("%d are under way, want %d", got, atOnce)
		}
		for range cap(refused) {
			if err := <-refused; codeOf(t, err) != http.StatusServiceUnavailable {
				t.Error(err)
			}
		}
		if len(l.line) != 0 {
			t.Errorf("%d are in line after all were answered", len(l.line))
		}
	})
}

// What was found decides, and what this agent does not know is no difference.
func TestWhatWasFoundIsCompared(t *testing.T) {
	want, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		t.Fatal(err)
	}
	absent := iptables.Drift{{Kind: iptables.KindAbsent, Text: "- everything"}}
	istio := &podnet.ProgrammedByOthersError{Owner: "Istio", Found: "chain ISTIO_OUTPUT"}
	for name, tc := range map[string]struct {
		looked    controllers.Looked
		found     kernel.Held
		err       error
		verdict   inspect.Verdict
		kept      bool
		different int
	}{
		"the rules are there":                     {looked: controllers.Looked{Want: &want}, found: kernel.Held{Backend: "nftables"}, verdict: inspect.Agree},
		"they are not":                            {looked: controllers.Looked{Want: &want}, found: kernel.Held{Drift: absent}, verdict: inspect.Differ, different: 1},
		"others' are there instead":               {looked: controllers.Looked{Want: &want}, found: kernel.Held{Drift: absent, Others: istio}, verdict: inspect.Agree},
		"others' are there as well, ours differ":  {looked: controllers.Looked{Want: &want}, found: kernel.Held{Backend: "nftables", Drift: absent, Others: istio}, verdict: inspect.Differ, different: 1},
		"rules of a pod that no longer asks":      {looked: controllers.Looked{Want: &want, Kept: true}, found: kernel.Held{Backend: "nftables"}, verdict: inspect.Agree, kept: true},
		"rules of an earlier agent":               {looked: controllers.Looked{Unknown: true}, found: kernel.Held{Backend: "iptables"}, verdict: inspect.Agree, kept: true},
		"none, of a pod that never asked":         {looked: controllers.Looked{Unknown: true}, verdict: inspect.Agree},
		"rules of a pod that opts out":            {looked: controllers.Looked{}, found: kernel.Held{Backend: "nftables"}, verdict: inspect.Differ, different: 1},
		"none, of a pod that opts out":            {looked: controllers.Looked{}, verdict: inspect.Agree},
		"a namespace that cannot be read in time": {looked: controllers.Looked{Want: &want}, err: context.DeadlineExceeded, verdict: inspect.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			node := &oneNode{looked: tc.looked}
			doc, err := node.looker(fakeKernel{tc.found, tc.err}).Document(t.Context(), "shop", "cart")
			if err != nil {
				t.Fatal(err)
			}
			if got := doc.Agreement; got.Verdict != tc.verdict || got.Kept != tc.kept || len(got.Differences) != tc.different || (got.Error != "") != (tc.err != nil) {
				t.Errorf("agreement %+v", got)
			}
		})
	}
}
