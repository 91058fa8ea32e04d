package controllers

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/internal/podnet"
)

// sink is an API server that keeps what it hears of events: the note of a new one, and that one has come again.
type sink chan string

func (s sink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- e.Note
	return e, nil
}

func (s sink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) { return e, nil }

func (s sink) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	s <- "again: " + e.Note
	return e, nil
}

// Each cause makes an event with its own words. The same cause makes no second one: it is counted, though the log's last words differ.
func TestEachFailureOfAProxyIsAnEventOfItsOwn(t *testing.T) {
	heard := make(sink, 10)
	broadcaster := events.NewBroadcaster(heard)
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer broadcaster.Shutdown()
	w := NewWriter(nil, Reader{}, broadcaster.NewRecorder(scheme.Scheme, "agent"))
	var got []string
	for _, message := range []string{"there is no Secret", "it has no key", "it has ended; its last words: 1", "it has ended; its last words: 2"} {
		w.ProxyEvent(podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u"}, "ProxyFailed", message)
		select {
		case note := <-heard:
			got = append(got, note)
		case <-time.After(5 * time.Second):
			t.Fatalf("nothing is heard of %q", message)
		}
	}
	want := []string{"there is no Secret", "it has no key", "it has ended; its last words: 1", "again: it has ended; its last words: 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
