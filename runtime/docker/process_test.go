package docker

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"istio-pod-network-controller/internal/podnet"
)

// changing answers the second inspection, and those that follow, with what comes next.
type changing struct {
	*fakeEngine
	next      json.RawMessage
	inspected int
}

func (c *changing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/containers/a/json") {
		if c.inspected++; c.inspected > 1 {
			c.containers["a"] = c.next
		}
	}
	c.fakeEngine.ServeHTTP(w, r)
}

// A path through a process is another pod's as soon as the process has ended: the sandbox must still be there, with the
// same process, after the path was looked at.
func TestFindAsksAgainWhereOnlyAProcessLeadsToTheNamespace(t *testing.T) {
	of := func(pid int, running bool) box {
		return box{id: "a", uid: podUID, kind: typeSandbox, state: container.StateRunning, now: func(c *container.InspectResponse) {
			c.NetworkSettings, c.State.Pid, c.State.Running = nil, pid, running
		}}
	}
	const unseen = 1 << 22
	tests := map[string]struct {
		first, then box
		want        string
	}{
		"still the same process":    {first: of(os.Getpid(), true), then: of(os.Getpid(), true), want: "found"},
		"stopped meanwhile":         {first: of(os.Getpid(), true), then: of(0, false), want: "not ready"},
		"another process meanwhile": {first: of(os.Getpid(), true), then: of(os.Getppid(), true), want: "not ready"},
		"ended before it was seen":  {first: of(unseen, true), then: of(0, false), want: "not ready"},
		"never to be seen":          {first: of(unseen, true), then: of(unseen, true), want: "failed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := &changing{fakeEngine: engineOf(t, []box{tt.first}, false)}
			e.next = engineOf(t, []box{tt.then}, false).containers["a"]
			f := newFinder(t, serveHandler(t, e))
			found, err := f.Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod", UID: podUID})
			got := "failed"
			switch {
			case err == nil && found.OfProcess():
				got = "found"
			case errors.Is(err, podnet.ErrNotReady):
				got = "not ready"
			}
			if got != tt.want || e.inspected != 2 {
				t.Errorf("%s after %d inspections: %+v, error %v; want %s after 2", got, e.inspected, found, err, tt.want)
			}
		})
	}
}
