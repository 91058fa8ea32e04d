package cri

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

const (
	ready    = criv1.PodSandboxState_SANDBOX_READY
	notReady = criv1.PodSandboxState_SANDBOX_NOTREADY
	podUID   = "uid-1"
)

func TestFind_recordedAnswers_givesTheSandbox(t *testing.T) {
	tests := map[string]struct {
		runtime string
		in      podnet.Sandbox
		want    podnet.Sandbox
	}{
		"containerd": {
			runtime: "containerd",
			in:      podnet.Sandbox{Namespace: "default", Name: "cap1", UID: "cb8bef1c-6501-4aea-8bdd-f4f7ff377212"},
			want: podnet.Sandbox{
				Namespace: "default", Name: "cap1", UID: "cb8bef1c-6501-4aea-8bdd-f4f7ff377212",
				ID:    "8478531267361dcf4b425dd6ce2376ad89cde0bd00b00a445ff4431f8fab522d",
				NetNS: "/var/run/netns/cni-493a7cb7-419b-ef79-d0d5-240cb388e88f", Nameservers: "10.96.0.10", CreatedAt: 1795186548137398521,
			},
		},
		"CRI-O": {
			runtime: "crio",
			in:      podnet.Sandbox{Namespace: "default", Name: "bcrio", UID: "11111111-0000-0000-0000-00000000000b"},
			want: podnet.Sandbox{
				Namespace: "default", Name: "bcrio", UID: "11111111-0000-0000-0000-00000000000b",
				ID:    "c13ba957d2cab6e68858cd5980ce98dd053b59d6e1c56b022b2285ae62cc2ea2",
				NetNS: "/var/run/netns/e6c76180-d052-4ed8-976c-b4e54c62428f", CreatedAt: 1795187995387086646,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFinder(t, "unix://"+serve(t, recorded(t, tt.runtime)))
			got, err := f.Find(t.Context(), tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Find (-want +got):\n%s", diff)
			}
		})
	}
}

// box is a sandbox of pod uid and its status, whose namespace path ends in the sandbox's ID.
type box struct {
	id, uid   string
	state     criv1.PodSandboxState
	createdAt int64
	attempt   uint32
	podName   string // "pod" unless it is given
	// now changes the status after the sandbox was listed; gone takes it away.
	now  func(*criv1.PodSandboxStatusResponse)
	gone bool
}

func runtimeOf(boxes []box, ignoresFilter bool) *fakeRuntime {
	r := &fakeRuntime{ignoresFilter: ignoresFilter, statuses: map[string]*criv1.PodSandboxStatusResponse{}}
	for _, b := range boxes {
		meta := &criv1.PodSandboxMetadata{Uid: b.uid, Attempt: b.attempt, Namespace: "ns", Name: cmp.Or(b.podName, "pod")}
		r.sandboxes = append(r.sandboxes, &criv1.PodSandbox{
			Id: b.id, Metadata: meta, State: b.state, CreatedAt: b.createdAt, Labels: map[string]string{labelPodUID: b.uid},
		})
		if b.gone {
			continue
		}
		resp := &criv1.PodSandboxStatusResponse{
			Status: &criv1.PodSandboxStatus{Id: b.id, Metadata: meta, State: b.state, CreatedAt: b.createdAt, RuntimeHandler: "handler-" + b.id},
			Info: map[string]string{infoKey: `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/` +
				b.id + `"}]}}}`},
		}
		if b.now != nil {
			b.now(resp)
		}
		r.statuses[b.id] = resp
	}
	return r
}

// choice is what a runtime lists, and which of it is the pod's sandbox; "" for none.
type choice struct {
	boxes  []box
	wantID string
}

func TestFind_severalSandboxes_takesTheNewest(t *testing.T) {
	tests := map[string]choice{
		"no sandbox at all":         {},
		"only those of another pod": {boxes: []box{{id: "a", uid: "uid-2", state: ready, createdAt: 9}}},
		"one, but not ready":        {boxes: []box{{id: "a", uid: podUID, state: notReady, createdAt: 9}}},
		"one ready":                 {boxes: []box{{id: "a", uid: podUID, state: ready, createdAt: 1}}, wantID: "a"},
		"the newest of three ready": {
			boxes: []box{
				{id: "a", uid: podUID, state: ready, createdAt: 2},
				{id: "b", uid: podUID, state: ready, createdAt: 3},
				{id: "c", uid: podUID, state: ready, createdAt: 1},
			},
			wantID: "b",
		},
		"the later attempt of two of the same time": {
			boxes: []box{
				{id: "a", uid: podUID, state: ready, createdAt: 2, attempt: 1},
				{id: "b", uid: podUID, state: ready, createdAt: 2, attempt: 0},
			},
			wantID: "a",
		},
		"a newer one that is not ready, and a newer one of another pod": {
			boxes: []box{
				{id: "a", uid: podUID, state: ready, createdAt: 1},
				{id: "b", uid: podUID, state: notReady, createdAt: 2, attempt: 1},
				{id: "c", uid: "uid-2", state: ready, createdAt: 3},
			},
			wantID: "a",
		},
		"removed since it was listed": {boxes: []box{{id: "a", uid: podUID, state: ready, gone: true}}},
		"stopped since it was listed": {boxes: []box{{
			id: "a", uid: podUID, state: ready,
			now: func(r *criv1.PodSandboxStatusResponse) { r.Status.State = notReady },
		}}},
		"namespace closed since it was listed": {boxes: []box{{
			id: "a", uid: podUID, state: ready,
			now: func(r *criv1.PodSandboxStatusResponse) { r.Info[infoKey] = `{"netNamespaceClosed":true}` },
		}}},
	}
	wantChoices(t, tests)
}

func TestFind_clockOrLabelsWrong_goesByAttemptAndName(t *testing.T) {
	wantChoices(t, map[string]choice{
		"the later attempt, though the clock was set back": {
			boxes: []box{
				{id: "a", uid: podUID, state: ready, createdAt: 9, attempt: 9},
				{id: "b", uid: podUID, state: ready, createdAt: 2, attempt: 10},
			},
			wantID: "b",
		},
		"not a newer one that claims the UID for another name": {
			boxes: []box{
				{id: "a", uid: podUID, state: ready, createdAt: 1},
				{id: "b", uid: podUID, state: ready, createdAt: 2, attempt: 7, podName: "other"},
			},
			wantID: "a",
		},
		"only one that claims the UID for another name": {
			boxes: []box{{id: "a", uid: podUID, state: ready, podName: "other"}},
		},
	})
}

// wantChoices has each list asked for with the runtime's filter, and without.
func wantChoices(t *testing.T, tests map[string]choice) {
	t.Helper()
	for name, tt := range tests {
		for mode, ignoresFilter := range map[string]bool{"filtered": false, "unfiltered": true} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				f := newFinder(t, serve(t, runtimeOf(tt.boxes, ignoresFilter)))
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
					ID: tt.wantID, NetNS: "/run/netns/" + tt.wantID, RuntimeHandler: "handler-" + tt.wantID,
				}
				chosen := tt.boxes[slices.IndexFunc(tt.boxes, func(b box) bool { return b.id == tt.wantID })]
				want.Attempt, want.CreatedAt = chosen.attempt, chosen.createdAt
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("Find (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestFind_wrongAnswer_isRefused(t *testing.T) {
	tests := map[string]struct {
		now  func(*criv1.PodSandboxStatusResponse)
		want string
	}{
		"no status": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Status = nil },
			want: "holds no status",
		},
		"the status of another sandbox": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Status.Id = "z" },
			want: `about sandbox "z"`,
		},
		"the status of another pod": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Status.Metadata = &criv1.PodSandboxMetadata{Uid: "uid-2"} },
			want: `of UID "uid-2", want UID "uid-1"`,
		},
		"the status of a pod of another name": {
			now: func(r *criv1.PodSandboxStatusResponse) {
				r.Status.Metadata = &criv1.PodSandboxMetadata{Uid: podUID, Namespace: "ns", Name: "other"}
			},
			want: `belongs to pod ns/other`,
		},
		"an answer without end": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Info["more"] = strings.Repeat("x", 8<<20) },
			want: "larger than max",
		},
		"the host's network": {
			now: func(r *criv1.PodSandboxStatusResponse) {
				r.Status.Linux = &criv1.LinuxPodSandboxStatus{Namespaces: &criv1.Namespace{
					Options: &criv1.NamespaceOption{Network: criv1.NamespaceMode_NODE},
				}}
			},
			want: "uses the host's network",
		},
		"no info": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Info = nil },
			want: `verbose status has no "info"`,
		},
		"info that is not JSON": {
			now:  func(r *criv1.PodSandboxStatusResponse) { r.Info[infoKey] = `{"pid":1` },
			want: "decode verbose status: unexpected end of JSON input",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFinder(t, serve(t, runtimeOf([]box{{id: "a", uid: podUID, state: ready, now: tt.now}}, false)))
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
	f := newFinder(t, serve(t, runtimeOf([]box{{id: "a", state: ready}}, false)))
	if got, err := f.Find(t.Context(), podnet.Sandbox{Namespace: "ns", Name: "pod"}); err == nil {
		t.Errorf("got %+v, want an error", got)
	}
}

// The largest annotations that a pod may have, of characters that JSON writes in six bytes each, twice.
func TestFind_largestAnnotations_isRead(t *testing.T) {
	padded := func(r *criv1.PodSandboxStatusResponse) {
		annotations := strings.Repeat("<", 256<<10)
		r.Status.Annotations = map[string]string{"a": annotations}
		r.Info[infoKey] = `{"padding":"` + strings.Repeat(`\u003c`, 2*len(annotations)) + `",` + r.Info[infoKey][1:]
	}
	f := newFinder(t, serve(t, runtimeOf([]box{{id: "a", uid: podUID, state: ready, now: padded}}, false)))
	got, err := f.Find(t.Context(), podnet.Sandbox{UID: podUID})
	if err != nil || got.NetNS != "/run/netns/a" {
		t.Errorf("got %+v, error %v", got, err)
	}
}

// CRI-O gives pods on the host's network a path, too, which leads to the host's namespace.
func TestFind_hostNetworkRecorded_isRefused(t *testing.T) {
	uids := map[string]string{
		"containerd": "cb8bef1c-6501-4aea-8bdd-f4f7ff377212", "crio": "11111111-0000-0000-0000-00000000000b",
	}
	for runtime, uid := range uids {
		t.Run(runtime, func(t *testing.T) {
			r := recorded(t, runtime)
			for _, answer := range r.statuses {
				answer.GetStatus().GetLinux().GetNamespaces().GetOptions().Network = criv1.NamespaceMode_NODE
			}
			got, err := newFinder(t, serve(t, r)).Find(t.Context(), podnet.Sandbox{UID: uid})
			if !errors.Is(err, errHostNetwork) {
				t.Errorf("got %+v, error %v, want %v", got, err, errHostNetwork)
			}
		})
	}
}

func BenchmarkFind(b *testing.B) {
	f := newFinder(b, serve(b, recorded(b, "containerd")))
	pod := podnet.Sandbox{UID: "cb8bef1c-6501-4aea-8bdd-f4f7ff377212"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Find(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
	}
}
