package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"istio-pod-network-controller/test/standins/kubeletstandin"
)

func TestSource_editLeavesTheVersionAsItWas_isTold(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1"))
	i := inform(t, f, Kubelet, apiServer{})
	i.awaitTold(t, "add a 1")
	f.Put(newPod("a", "1", note("x")))
	i.awaitTold(t, "add a 1", "update a 1 x")
	f.Put(newPod("a", "1", note("x"))) // says nothing new
	f.Put(newPod("a", "1", note("y")))
	i.awaitTold(t, "add a 1", "update a 1 x", "update a 1 y")
	if s := i.source.State(); s.From != Kubelet || s.Err != nil || time.Since(s.Heard) > time.Minute {
		t.Errorf("state %+v", s)
	}
}

// The kubelet goes on listing a pod whose end it has told.
func TestSource_endedPodIsStillListed_isNotTakenForANewOne(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1"), newPod("b", "2"))
	i := inform(t, f, Kubelet, apiServer{}, func(at *times) { at.list = 20 * time.Millisecond })
	i.awaitPods(t, map[string]string{"a": "1", "b": "2"})
	f.End(newPod("a", "1"), true)
	i.awaitPods(t, map[string]string{"b": "2"})
	f.Put(newPod("c", "3"))
	i.awaitPods(t, map[string]string{"b": "2", "c": "3"})
	for _, said := range i.sofar()[2:] {
		if said != "delete a 1" && said != "add c 3" {
			t.Errorf("told %q", said)
		}
	}
}

// The kubelet says nothing of an edit of metadata while the pod's status stays as it is.
func TestSource_editWithoutAnEvent_isFoundByTheNextList(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1"), newPod("b", "2"))
	i := inform(t, f, Kubelet, apiServer{}, func(at *times) { at.list = 20 * time.Millisecond })
	i.awaitPods(t, map[string]string{"a": "1", "b": "2"})
	f.PutSilently(newPod("a", "1", note("x")))
	await(t, "the edit", func() bool { return len(i.sofar()) > 2 })
	if got := i.sofar()[2:]; len(got) != 1 || got[0] != "update a 1 x" {
		t.Errorf("told %q", got)
	}
}

// Lists that fail must not go on unseen: edits would be lost. Some may fail, since the kubelet limits all of its callers together.
// The kubelet sends its worker's copy of a pod, which may be older than what it lists.
func TestSource_eventIsOlderThanAList_takesNothingBack(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1"))
	i := inform(t, f, Kubelet, apiServer{}, func(at *times) { at.list = 20 * time.Millisecond })
	i.awaitTold(t, "add a 1")
	f.PutSilently(newPod("a", "1", note("x")))
	await(t, "the edit", func() bool { return len(i.sofar()) > 1 })
	for range 20 {
		f.Tell(newPod("a", "1"))
	}
	f.Put(newPod("b", "2"))
	i.awaitPods(t, map[string]string{"a": "1", "b": "2"})
	i.awaitTold(t, "add a 1", "update a 1 x", "add b 2")
}

func TestSource_listsFail_theStreamBeginsAnew(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1"))
	i := inform(t, f, Kubelet, apiServer{}, func(at *times) { at.list = 20 * time.Millisecond })
	i.awaitPods(t, map[string]string{"a": "1"})
	f.Change(func() { f.Limited = mostFailures - 1 })
	await(t, "some lists that fail", func() (done bool) { f.Change(func() { done = f.Limited == 0 }); return done })
	if s := i.source.State(); s.Err != nil {
		t.Errorf("after %d failures: %v", mostFailures-1, s.Err)
	}
	f.Change(func() { f.Limited = 1 << 30 })
	await(t, "a failure that is seen", func() bool { return i.source.State().Err != nil })
	f.PutSilently(newPod("a", "1", note("x")))
	await(t, "the edit, by a new stream", func() bool { return len(i.sofar()) > 1 })
}

func TestSource_lostEvents_areFoundByTheNextList(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	gone := newPod("gone", "1")
	f.Put(gone, newPod("edited", "2"))
	i := inform(t, f, Kubelet, apiServer{}, func(at *times) { at.list = 50 * time.Millisecond })
	i.awaitPods(t, map[string]string{"gone": "1", "edited": "2"})
	f.Change(func() { delete(f.Pods, gone.UID) })
	f.PutSilently(newPod("edited", "2", note("x")))
	f.PutSilently(newPod("new", "3"))
	i.awaitPods(t, map[string]string{"edited": "2", "new": "3"})
	await(t, "three changes are counted", func() bool { return i.source.State().Missed == 3 })
}

// A successor may be there before its predecessor has ended: of static pods, and in a stream that mixes a deletion and a creation.
func TestSource_predecessorEndsLast_theSuccessorStays(t *testing.T) {
	for name, pods := range map[string][2]*corev1.Pod{
		"created": {newPod("db-0", "1", created(100)), newPod("db-0", "2", created(200))},
		"static":  {newPod("db-0", "1", seenAtTime("2026-01-02T10:00:00.5Z")), newPod("db-0", "2", seenAtTime("2026-01-02T12:00:00.25+02:00"), created(0))},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeKubelet(t)
			start(t, f)
			old, next := pods[0], pods[1]
			if name == "static" {
				next.Annotations[seenAt] = "2026-01-02T12:00:00.75+02:00"
			}
			f.Put(old)
			i := inform(t, f, Kubelet, apiServer{})
			i.awaitPods(t, map[string]string{"db-0": "1"})
			f.Put(next)
			i.awaitPods(t, map[string]string{"db-0": "2"})
			ending := old.DeepCopy()
			ending.DeletionTimestamp = new(metav1.Now())
			f.Put(ending)
			f.End(old, false)
			f.Put(newPod("other", "3"))
			i.awaitPods(t, map[string]string{"db-0": "2", "other": "3"})
			for _, said := range i.sofar() {
				if strings.HasPrefix(said, "delete") {
					t.Errorf("told %q", said)
				}
			}
		})
	}
}

// The newest pod of a name may end first. What becomes of the other one is in the next list only.
func TestSource_successorEndsFirst_thePredecessorIsBack(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("a", "1", created(100)), newPod("a", "2", created(200)))
	i := inform(t, f, Kubelet, apiServer{})
	i.awaitPods(t, map[string]string{"a": "2"})
	f.End(newPod("a", "2"), false)
	i.awaitPods(t, map[string]string{"a": "1"})
}

func TestSource_kubeletRestarts_nothingIsToldTwice(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("stays", "1"), newPod("goes", "2"))
	i := inform(t, f, Auto, apiServer{}, func(at *times) { at.patience = time.Minute })
	i.awaitPods(t, map[string]string{"stays": "1", "goes": "2"})
	f.Stop()
	await(t, "the loss is seen", func() bool { return i.source.State().Err != nil })
	f.Change(func() {
		delete(f.Pods, "2")
		f.Refuses = status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	})
	start(t, f)
	await(t, "it says why", func() bool {
		err := i.source.State().Err
		return err != nil && strings.Contains(err.Error(), "does not know its pods yet")
	})
	f.Change(func() { f.Refuses = nil })
	i.awaitPods(t, map[string]string{"stays": "1"})
	await(t, "the end is told", func() bool { return len(i.sofar()) > 2 }) // the informer knows it a moment before
	if got := i.sofar(); len(got) != 3 || got[2] != "delete goes 2" {
		t.Errorf("told %q", got)
	}
	if s := i.source.State(); s.From != Kubelet || s.Err != nil || s.Moves != 0 || s.Missed != 0 {
		t.Errorf("state %+v", s)
	}
}

// Kubelets are upgraded, and taken back: no pod is forgotten meanwhile, and none is new again.
func TestSource_kubeletComesAndGoes_podsStay(t *testing.T) {
	api := newAPIServer()
	for _, pod := range []*corev1.Pod{newPod("a", "1"), newPod("b", "2")} {
		api.Add(pod.DeepCopy())
	}
	f := newFakeKubelet(t)
	f.Put(newPod("a", "1"), newPod("b", "2"))
	i := inform(t, f, Auto, api)
	both := map[string]string{"a": "1", "b": "2"}
	i.awaitPods(t, both)
	if from := i.source.State().From; from != API {
		t.Fatalf("without a kubelet pods come from %q", from)
	}
	start(t, f)
	await(t, "the kubelet is found", func() bool { return i.source.State().From == Kubelet })
	i.awaitPods(t, both)
	f.Put(newPod("c", "3"))
	i.awaitPods(t, map[string]string{"a": "1", "b": "2", "c": "3"})
	api.Add(newPod("c", "3"))
	f.Stop()
	await(t, "the API server is back", func() bool { return i.source.State().From == API })
	api.Add(newPod("d", "4"))
	i.awaitPods(t, map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"})
	for _, said := range i.sofar() {
		if strings.HasPrefix(said, "delete") {
			t.Errorf("told %q", said)
		}
	}
	if n := strings.Count(strings.Join(i.sofar(), "\n"), "add "); n != 4 {
		t.Errorf("%d pods were added: %q", n, i.sofar())
	}
	if s := i.source.State(); s.Moves != 2 {
		t.Errorf("state %+v", s)
	}
}

func TestSource_modeAPI_neverAsksTheKubelet(t *testing.T) {
	api := newAPIServer()
	api.Add(newPod("a", "1"))
	f := newFakeKubelet(t)
	start(t, f)
	i := inform(t, f, API, api)
	i.awaitPods(t, map[string]string{"a": "1"})
	if s := i.source.State(); s.From != API {
		t.Errorf("state %+v", s)
	}
}

// Whatever is at the socket, the API server has the pods.
func TestSource_nothingUsableAtTheSocket_theAPIServerIsAsked(t *testing.T) {
	for name, prepare := range map[string]func(*kubeletstandin.Kubelet){
		"gate is off": func(f *kubeletstandin.Kubelet) {
			f.Refuses = status.Error(codes.Unimplemented, "unknown service v1alpha1.Pods")
		},
		"not ready": func(f *kubeletstandin.Kubelet) {
			f.Refuses = status.Error(codes.FailedPrecondition, "Kubelet is initializing")
		},
		"garbage": func(f *kubeletstandin.Kubelet) {
			f.Instead = []*podsv1alpha1.WatchPodsEvent{{Type: podsv1alpha1.EventType_ADDED, Pod: []byte("\xff\xff")}}
		},
		"no name": func(f *kubeletstandin.Kubelet) {
			f.Instead = []*podsv1alpha1.WatchPodsEvent{kubeletstandin.Event(podsv1alpha1.EventType_ADDED, newPod("", "1"))}
		},
		"no list": func(f *kubeletstandin.Kubelet) {
			f.Instead = []*podsv1alpha1.WatchPodsEvent{kubeletstandin.Event(podsv1alpha1.EventType_DELETED, newPod("a", "1"))}
		},
		"too large": func(f *kubeletstandin.Kubelet) {
			f.Instead = []*podsv1alpha1.WatchPodsEvent{kubeletstandin.Event(podsv1alpha1.EventType_ADDED, newPod("a", "1", note(strings.Repeat("x", maxMessage))))}
		},
		"unknown event": func(f *kubeletstandin.Kubelet) { f.Instead = []*podsv1alpha1.WatchPodsEvent{{Type: 99}} },
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer()
			api.Add(newPod("a", "1"))
			f := newFakeKubelet(t)
			prepare(f)
			start(t, f)
			i := inform(t, f, Auto, api)
			i.awaitPods(t, map[string]string{"a": "1"})
			if s := i.source.State(); s.From != API {
				t.Errorf("state %+v", s)
			}
		})
	}
}

func TestSource_manyAndLargePods_areListed(t *testing.T) {
	f := newFakeKubelet(t)
	start(t, f)
	f.Put(newPod("large", "large", note(strings.Repeat("x", 2<<20))))
	for n := range 1000 {
		f.Put(newPod(fmt.Sprint("pod-", n), fmt.Sprint("uid-", n)))
	}
	i := inform(t, f, Kubelet, apiServer{})
	await(t, "all pods", func() bool { return len(i.pods()) == 1001 })
}
