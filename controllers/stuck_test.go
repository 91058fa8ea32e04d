package controllers

import (
	"context"
	"errors"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

// Whatever a pod's annotations say, the kernel that did not answer is left alone, and any other outcome ends that.
func TestResult_kernelLeftAlone_untilItAnswers(t *testing.T) {
	wrong := errors.New("a wrong annotation")
	for name, c := range map[string]struct {
		err  error
		busy bool
	}{
		"time ran out":                    {context.DeadlineExceeded, true},
		"and the annotation is wrong":     {keptError{permanentError{errors.Join(wrong, context.DeadlineExceeded)}}, true},
		"the annotation is wrong":         {permanentError{wrong}, false},
		"and the runtime did not answer":  {permanentError{errors.Join(wrong, reasonError{context.DeadlineExceeded, reasonRuntime})}, false},
		"the API server did not answer":   {reasonError{context.DeadlineExceeded, reasonAPI}, false},
		"the kernel refused":              {errors.New("no"), false},
		"the sandbox is not there":        {podnet.ErrNotReady, false},
		"the rules are as they should be": {nil, false},
	} {
		for _, announced := range []bool{false, true} {
			w, b := newWatch(t)
			b.Announcers = []func() bool{func() bool { return announced }}
			w.queue.unanswered(askingPod())
			_, _ = w.result(t.Context(), askingPod(), Watch, c.err)
			if busy := !w.queue.of(askingPod()).busy.IsZero(); busy != c.busy {
				t.Errorf("%s, announced %t: left alone %t", name, announced, busy)
			}
		}
	}
}

func TestBegin_recreatedPod_isNotLeftAlone(t *testing.T) {
	q, recreated := newQueue(), askingPod()
	t.Cleanup(q.ShutDown)
	recreated.UID = "uid-2"
	q.unanswered(askingPod())
	if _, _, wait := q.begin(askingPod(), Watch); wait <= 0 {
		t.Error("the pod is not left alone")
	}
	end, _, wait := q.begin(recreated, Watch)
	if wait > 0 {
		t.Fatalf("it waits %s for what another pod did", wait)
	}
	end()
}
