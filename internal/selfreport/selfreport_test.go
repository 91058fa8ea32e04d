package selfreport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/agentstatus"
)

func TestWhenTheAgentsStatusIsWritten(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	up, down := agentstatus.Hook{Name: "nri", Up: true}, agentstatus.Hook{Name: "nri", Message: "away"}
	last := agentstatus.Status{
		Version: "1", Ready: true, Hook: []agentstatus.Hook{up},
		LastError: &agentstatus.Error{Pod: "shop/cart", Message: "no", Time: began}, Time: began,
	}
	for name, c := range map[string]struct {
		after  time.Duration
		change func(*agentstatus.Status)
		want   bool
	}{
		"nothing has changed for a day":         {24 * time.Hour, func(*agentstatus.Status) {}, false},
		"the clock was set back":                {-time.Second, func(*agentstatus.Status) {}, true},
		"not ready, at once":                    {time.Second, func(s *agentstatus.Status) { s.Ready = false }, true},
		"a hook is lost, at once":               {time.Second, func(s *agentstatus.Status) { s.Hook = []agentstatus.Hook{down} }, true},
		"a hook more, at once":                  {time.Second, func(s *agentstatus.Status) { s.Hook = append(s.Hook[:1:1], down) }, true},
		"another error, too soon":               {59 * time.Second, func(s *agentstatus.Status) { s.LastError = &agentstatus.Error{Message: "other"} }, false},
		"another error":                         {time.Minute, func(s *agentstatus.Status) { s.LastError = &agentstatus.Error{Message: "other"} }, true},
		"the same error once more":              {time.Hour, func(s *agentstatus.Status) { s.LastError = &agentstatus.Error{Pod: "shop/cart", Message: "no"} }, false},
		"where inspect is answered has changed": {time.Minute, func(s *agentstatus.Status) { s.Inspect = &agentstatus.Inspect{Port: 1} }, true},
	} {
		now := last
		now.Time = began.Add(c.after)
		c.change(&now)
		if got := due(last, now); got != c.want {
			t.Errorf("%s: written %t, want %t", name, got, c.want)
		}
	}
	if !due(agentstatus.Status{}, last) {
		t.Error("the first one is not written")
	}
}

// written are the attempts to write a status, and those that succeeded.
type written struct {
	mu       sync.Mutex
	away     bool
	attempts []time.Time
	statuses []agentstatus.Status
}

func (w *written) write(_ context.Context, s agentstatus.Status) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts = append(w.attempts, time.Now())
	if w.away {
		return errors.New("away")
	}
	w.statuses = append(w.statuses, s)
	return nil
}

// after waits, and returns what was written until then. From then on the API server is there or not.
func (w *written) after(d time.Duration, away bool) ([]time.Time, []agentstatus.Status) {
	<-time.After(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = away
	return slices.Clone(w.attempts), slices.Clone(w.statuses)
}

// What fails is tried again within 15 s, with what holds by then.
func TestAStatusThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, w := time.Now(), &written{away: true}
		done := make(chan struct{})
		go func() {
			defer close(done)
			// Pods fail in turn.
			look := func(context.Context) agentstatus.Status {
				return agentstatus.Status{Ready: true, LastError: &agentstatus.Error{Message: fmt.Sprint(int(time.Since(began).Seconds()))}, Time: time.Now()}
			}
			Report{Look: look, Write: w.write, Log: logr.Discard()}.Start(ctx)
		}()
		attempts, _ := w.after(2*time.Minute, false)
		for i, at := range attempts[1:] {
			if pause := at.Sub(attempts[i]); pause > 15*time.Second {
				t.Errorf("attempt %d came after %s", i+2, pause)
			}
		}
		if last := attempts[len(attempts)-1]; last.Sub(began) < 100*time.Second || len(attempts) > 60 {
			t.Errorf("%d attempts, the last after %s", len(attempts), last.Sub(began))
		}
		_, statuses := w.after(5*time.Minute, false)
		if len(statuses) < 4 || len(statuses) > 5 { // every minute
			t.Errorf("%d written in five minutes", len(statuses))
		}
		if first := statuses[0]; first.Time.Sub(began) < 2*time.Minute {
			t.Errorf("the first that was written is old: %v", first)
		}
		cancel()
		<-done
	})
}

// A node on which nothing happens must cost the API server nothing.
func TestReport_idleAgentForADay_writesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w, done := &written{}, make(chan struct{})
		look := func(context.Context) agentstatus.Status { return agentstatus.Status{Ready: true, Time: time.Now()} }
		go func() { defer close(done); Report{Look: look, Write: w.write, Log: logr.Discard()}.Start(ctx) }()
		if attempts, _ := w.after(24*time.Hour, false); len(attempts) != 1 {
			t.Errorf("%d requests", len(attempts))
		}
		cancel()
		<-done
	})
}

// statusPatch is the last patch of a status.
type statusPatch struct {
	client.SubResourceWriter
	key  types.NamespacedName
	kind types.PatchType
	data []byte
}

func (p *statusPatch) Status() client.SubResourceWriter { return p }

func (p *statusPatch) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) (err error) {
	p.key, p.kind = client.ObjectKeyFromObject(obj), patch.Type()
	p.data, err = patch.Data(obj)
	return err
}

// The policy lets the agent write this one annotation, and nothing beside it.
func TestTheAgentsStatusIsOneAnnotation(t *testing.T) {
	own, p := types.NamespacedName{Namespace: "mesh", Name: "agent-1"}, &statusPatch{}
	status := agentstatus.Status{Version: "1", Ready: true}
	if err := write(t.Context(), p, own, status); err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]map[string]string
	if err := json.Unmarshal(p.data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]map[string]string{"metadata": {"annotations": {agentstatus.Annotation: status.String()}}}
	if diff := cmp.Diff(want, got); diff != "" || p.key != own || p.kind != types.MergePatchType {
		t.Errorf("%s of %s (-want +got):\n%s", p.kind, p.key, diff)
	}
}

// Agents that lost the API server at one moment must not ask it in step.
func TestReport_twoAgentsInOneOutage_tryAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		agents, done := [2]written{{away: true}, {away: true}}, make(chan struct{})
		for i := range agents {
			look := func(context.Context) agentstatus.Status { return agentstatus.Status{Ready: true, Time: time.Now()} }
			go func() { Report{Look: look, Write: agents[i].write, Log: logr.Discard()}.Start(ctx); done <- struct{}{} }()
		}
		one, _ := agents[0].after(5*time.Minute, true)
		other, _ := agents[1].after(0, true)
		for _, at := range one[1:] { // both write as they start
			if slices.ContainsFunc(other, at.Equal) {
				t.Errorf("both try at %s", at)
			}
		}
		cancel()
		<-done
		<-done
	})
}
