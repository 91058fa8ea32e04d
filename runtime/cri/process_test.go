package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

// changing answers the second question for a status, and those that follow, with what comes next.
type changing struct {
	*fakeRuntime
	next  *criv1.PodSandboxStatusResponse
	asked int
}

func (c *changing) PodSandboxStatus(ctx context.Context, req *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	if c.asked++; c.asked > 1 {
		c.statuses[req.GetPodSandboxId()] = c.next
	}
	return c.fakeRuntime.PodSandboxStatus(ctx, req)
}

// A path through a process is another pod's as soon as the process has ended: the sandbox must still be ready, with the
// same process, after the path was looked at.
func TestFindAsksAgainWhereOnlyAProcessLeadsToTheNamespace(t *testing.T) {
	of := func(pid int, state criv1.PodSandboxState) box {
		return box{id: "a", uid: podUID, state: ready, now: func(r *criv1.PodSandboxStatusResponse) {
			r.Status.State, r.Info[infoKey] = state, fmt.Sprintf(`{"pid":%d}`, pid)
		}}
	}
	const unseen = 1 << 22
	tests := map[string]struct {
		first, then box
		want        string
	}{
		"still the same process":    {first: of(os.Getpid(), ready), then: of(os.Getpid(), ready), want: "found"},
		"stopped meanwhile":         {first: of(os.Getpid(), ready), then: of(os.Getpid(), notReady), want: "not ready"},
		"another process meanwhile": {first: of(os.Getpid(), ready), then: of(os.Getppid(), ready), want: "not ready"},
		"ended before it was seen":  {first: of(unseen, ready), then: of(unseen, notReady), want: "not ready"},
		"never to be seen":          {first: of(unseen, ready), then: of(unseen, ready), want: "failed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := &changing{fakeRuntime: runtimeOf([]box{tt.first}, false), next: runtimeOf([]box{tt.then}, false).statuses["a"]}
			found, err := newFinder(t, serve(t, r)).Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod", UID: podUID})
			got := "failed"
			switch {
			case err == nil && found.OfProcess():
				got = "found"
			case errors.Is(err, podnet.ErrNotReady):
				got = "not ready"
			}
			if got != tt.want || r.asked != 2 {
				t.Errorf("%s after %d answers: %+v, error %v; want %s after 2", got, r.asked, found, err, tt.want)
			}
		})
	}
}
