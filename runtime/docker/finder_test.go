package docker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"istio-pod-network-controller/internal/podnet"
)

const (
	recordedUID = "5f0c6a3e-1111-2222-3333-444455556666"
	recordedID  = "5abcd5fdf6db836fea163d4e2e71913a6831ce7c08c7e621b024ad1105f3b125"
	podUID      = "uid-1"
)

func TestFind_recordedAnswers_givesTheSandbox(t *testing.T) {
	f := newFinder(t, "unix://"+serve(t, recorded(t)))
	pod := podnet.Sandbox{Namespace: "default", Name: "web", UID: recordedUID}
	got, err := f.Find(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	pod.ID, pod.NetNS, pod.CreatedAt = recordedID, "/var/run/docker/exec/netns/acd009690ceb", 1795186709846474874
	if diff := gocmp.Diff(pod, got); diff != "" {
		t.Errorf("Find (-want +got):\n%s", diff)
	}
}

// box is a container of pod uid; its namespace's path ends in its ID. Its name contains the attempt; the pod is ns/pod unless
// another name is given.
type box struct {
	id, uid, kind string
	attempt       uint32
	podName       string
	state         container.ContainerState
	created       int64
	// now replaces the answer after the container was listed; gone takes it away.
	now  func(*container.InspectResponse)
	gone bool
}

func engineOf(t *testing.T, boxes []box, ignoresFilter bool) *fakeEngine {
	t.Helper()
	e := &fakeEngine{apiVersion: "1.44", ignoresFilter: ignoresFilter, containers: map[string]json.RawMessage{}}
	for _, b := range boxes {
		labels := map[string]string{
			labelPodUID: b.uid, labelType: b.kind, labelPodNamespace: "ns", labelPodName: cmp.Or(b.podName, "pod"),
		}
		names := []string{fmt.Sprintf("/k8s_POD_pod_ns_%s_%d", b.uid, b.attempt)}
		e.list = append(e.list, container.Summary{ID: b.id, Names: names, Labels: labels, State: b.state, Created: b.created})
		if b.gone {
			continue
		}
		answer := &container.InspectResponse{
			ID: b.id, Name: names[0], Config: &container.Config{Labels: maps.Clone(labels)},
			State:           &container.State{Running: b.state == container.StateRunning, Pid: 7},
			HostConfig:      &container.HostConfig{NetworkMode: "none", Runtime: "runtime-" + b.id},
			NetworkSettings: &container.NetworkSettings{SandboxKey: "/run/docker/netns/" + b.id},
		}
		if b.now != nil {
			b.now(answer)
		}
		text, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		e.containers[b.id] = text
	}
	return e
}

// choice is what a runtime lists, and which of it is the pod's sandbox; "" for none.
type choice struct {
	boxes  []box
	wantID string
}

func TestFind_severalSandboxes_takesTheNewest(t *testing.T) {
	const running, exited = container.StateRunning, container.StateExited
	tests := map[string]choice{
		"no container at all":         {},
		"only those of another pod":   {boxes: []box{{id: "a", uid: "uid-2", kind: typeSandbox, state: running}}},
		"a container, but no sandbox": {boxes: []box{{id: "a", uid: podUID, kind: "container", state: running}}},
		"a sandbox that has ended":    {boxes: []box{{id: "a", uid: podUID, kind: typeSandbox, state: exited}}},
		"the newest of three running": {
			boxes: []box{
				{id: "a", uid: podUID, kind: typeSandbox, state: running, created: 2},
				{id: "b", uid: podUID, kind: typeSandbox, state: running, created: 3},
				{id: "c", uid: podUID, kind: typeSandbox, state: running, created: 1},
			},
			wantID: "b",
		},
		"the first listed of two of the same second": {
			boxes: []box{
				{id: "a", uid: podUID, kind: typeSandbox, state: running, created: 2},
				{id: "b", uid: podUID, kind: typeSandbox, state: running, created: 2},
			},
			wantID: "a",
		},
		"newer ones that ended, are of another pod, or are no sandbox": {
			boxes: []box{
				{id: "a", uid: podUID, kind: typeSandbox, state: running, created: 1},
				{id: "b", uid: podUID, kind: typeSandbox, state: exited, created: 2},
				{id: "c", uid: "uid-2", kind: typeSandbox, state: running, created: 3},
				{id: "d", uid: podUID, kind: "container", state: running, created: 4},
			},
			wantID: "a",
		},
		"removed since it was listed": {boxes: []box{{id: "a", uid: podUID, kind: typeSandbox, state: running, gone: true}}},
		"stopped since it was listed": {boxes: []box{{
			id: "a", uid: podUID, kind: typeSandbox, state: running,
			now: func(c *container.InspectResponse) { c.State.Running = false },
		}}},
	}
	wantChoices(t, tests)
}

func TestFind_clockOrLabelsWrong_goesByAttemptAndName(t *testing.T) {
	const running = container.StateRunning
	wantChoices(t, map[string]choice{
		"the later attempt, though the clock was set back": {
			boxes: []box{
				{id: "a", uid: podUID, kind: typeSandbox, state: running, created: 9, attempt: 9},
				{id: "b", uid: podUID, kind: typeSandbox, state: running, created: 2, attempt: 10},
			},
			wantID: "b",
		},
		"not a newer one that claims the UID for another name": {
			boxes: []box{
				{id: "a", uid: podUID, kind: typeSandbox, state: running, created: 1},
				{id: "b", uid: podUID, kind: typeSandbox, state: running, created: 2, attempt: 7, podName: "other"},
			},
			wantID: "a",
		},
		"only one that claims the UID for another name": {
			boxes: []box{{id: "a", uid: podUID, kind: typeSandbox, state: running, podName: "other"}},
		},
	})
}

// wantChoices has each list asked for with the runtime's filter, and without.
func wantChoices(t *testing.T, tests map[string]choice) {
	t.Helper()
	for name, tt := range tests {
		for mode, ignoresFilter := range map[string]bool{"filtered": false, "unfiltered": true} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				f := newFinder(t, serve(t, engineOf(t, tt.boxes, ignoresFilter)))
				got, err := f.Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod", UID: podUID})
				if tt.wantID == "" {
					if !errors.Is(err, podnet.ErrNotReady) {
						t.Fatalf("got %+v, error %v; want one that is podnet.ErrNotReady", got, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				want := podnet.Sandbox{
					Namespace: "ns", Name: "pod", UID: podUID,
					ID: tt.wantID, NetNS: "/run/docker/netns/" + tt.wantID, RuntimeHandler: "runtime-" + tt.wantID,
				}
				want.Attempt = tt.boxes[slices.IndexFunc(tt.boxes, func(b box) bool { return b.id == tt.wantID })].attempt
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("Find (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestFind_wrongAnswer_isRefused(t *testing.T) {
	tests := map[string]struct {
		now  func(*container.InspectResponse)
		want string
	}{
		"the answer about another container": {
			now:  func(c *container.InspectResponse) { c.ID = "z" },
			want: `about container "z"`,
		},
		"the sandbox of another pod": {
			now: func(c *container.InspectResponse) {
				c.Config.Labels = map[string]string{labelPodUID: "uid-2", labelType: typeSandbox}
			},
			want: `not say that it is the sandbox of pod UID "uid-1"`,
		},
		"a sandbox that claims the UID for another name": {
			now:  func(c *container.InspectResponse) { c.Config.Labels[labelPodName] = "other" },
			want: `not say that it is the sandbox of pod UID "uid-1"`,
		},
		"an application's container": {
			now:  func(c *container.InspectResponse) { c.Config.Labels[labelType] = "container" },
			want: `not say that it is the sandbox of pod UID "uid-1"`,
		},
		"an answer without end": {
			now:  func(c *container.InspectResponse) { c.Name = strings.Repeat("x", maxAnswerBytes) },
			want: "larger than 8388608 bytes",
		},
		"an answer without labels": {
			now:  func(c *container.InspectResponse) { c.Config = nil },
			want: `not say that it is the sandbox of pod UID "uid-1"`,
		},
		"the host's network": {
			now:  func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "host" },
			want: "uses the host's network",
		},
		"neither path nor pid": {
			now:  func(c *container.InspectResponse) { c.NetworkSettings, c.State.Pid = nil, 0 },
			want: "NetworkSettings.SandboxKey is empty, and State.Pid: pid 0",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			one := box{id: "a", uid: podUID, kind: typeSandbox, state: container.StateRunning, now: tt.now}
			f := newFinder(t, serve(t, engineOf(t, []box{one}, false)))
			got, err := f.Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod", UID: podUID})
			if err == nil || errors.Is(err, podnet.ErrNotReady) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want a lasting one that contains %q", err, tt.want)
			}
			if got != (podnet.Sandbox{}) {
				t.Errorf("got %+v with the error, want nothing", got)
			}
		})
	}
}

func TestFind_noUID_fails(t *testing.T) {
	one := box{id: "a", kind: typeSandbox, state: container.StateRunning}
	f := newFinder(t, serve(t, engineOf(t, []box{one}, false)))
	if got, err := f.Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod"}); err == nil {
		t.Errorf("got %+v, want an error", got)
	}
}

func TestFind_brokenJSON_isReported(t *testing.T) {
	e := recorded(t)
	whole := e.containers[recordedID]
	e.containers[recordedID] = whole[:len(whole)/2]
	f := newFinder(t, serve(t, e))
	_, err := f.Find(t.Context(), podnet.Sandbox{UID: recordedUID})
	if err == nil || errors.Is(err, podnet.ErrNotReady) || !strings.Contains(err.Error(), "inspect sandbox "+recordedID+": ") {
		t.Errorf("got %v, want a lasting error of the inspection", err)
	}
}
