package kubelet

import (
	"hash/maphash"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// firstVersion is above all resource versions of the API server, so that nobody takes a version of the one for one of the other.
const firstVersion = uint64(1) << 62

// roster is what an informer was told of the kubelet's pods. It turns messages into events of an informer:
//
//   - The kubelet leaves a pod's resource version as it saw it first, whatever is edited. An informer does not pass on a change without a new
//     version, so each change gets one here. What says nothing new is no event.
//   - The kubelet knows pods by UID, an informer by name. A static pod's predecessor, and a pod that ends slowly, may be there beside a new pod of
//     that name: the newest one counts, and the end of another one is no event.
//   - The kubelet says that a pod is deleted once its containers have ended for good, although it goes on listing it. It is not listed here again.
type roster struct {
	pods    map[types.NamespacedName]known
	version uint64
	seed    maphash.Seed
}

// known is a pod as it was told last.
type known struct {
	pod *corev1.Pod // with its names, UID and times only
	sum uint64      // of all of it
	// others are older pods of that name that have not ended, as far as is known.
	others map[types.UID]bool
}

func newRoster() *roster {
	return &roster{pods: map[types.NamespacedName]known{}, version: firstVersion, seed: maphash.MakeSeed()}
}

// last returns the version of the newest event.
func (r *roster) last() string { return strconv.FormatUint(r.version, 10) }

// changed returns the event of a pod that was added or modified: none if it says nothing new.
func (r *roster) changed(pod *corev1.Pod) []watch.Event {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	sum := r.sum(pod)
	was, isKnown := r.pods[name]
	switch {
	case isKnown && was.pod.UID == pod.UID && was.sum == sum:
		return nil
	case isKnown && was.pod.UID != pod.UID && !newer(pod, was.pod):
		was.others[pod.UID] = true
		return nil
	case !isKnown:
		was.others = map[types.UID]bool{}
	case was.pod.UID != pod.UID:
		was.others[was.pod.UID] = true
	}
	was.pod, was.sum = identity(pod), sum
	r.pods[name] = was
	kind := watch.Modified
	if !isKnown {
		kind = watch.Added
	}
	return []watch.Event{{Type: kind, Object: r.stamp(pod)}}
}

// removed returns the event of a pod that has ended: none if it was not the newest of its name. If others remain, only a new list says how they are.
func (r *roster) removed(pod *corev1.Pod) (out []watch.Event, remain bool) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	was, isKnown := r.pods[name]
	switch {
	case !isKnown:
		return nil, false
	case was.pod.UID != pod.UID:
		delete(was.others, pod.UID)
		return nil, false
	}
	delete(r.pods, name)
	return []watch.Event{{Type: watch.Deleted, Object: r.stamp(was.pod)}}, len(was.others) > 0
}

// listed returns the events of a list: of what is new in it, and of pods that it lacks.
func (r *roster) listed(all list) []watch.Event {
	var out []watch.Event
	for name, was := range r.pods {
		if _, ok := all[name]; !ok {
			gone, _ := r.removed(was.pod)
			out = append(out, gone...)
		}
	}
	for name, l := range all {
		out = append(out, r.changed(l.pod)...)
		now := r.pods[name]
		now.others = l.others
		r.pods[name] = now
	}
	return out
}

// whole returns all pods of a list, and forgets what was told before.
func (r *roster) whole(all list) *corev1.PodList {
	clear(r.pods)
	out := &corev1.PodList{}
	for _, e := range r.listed(all) {
		if pod, ok := e.Object.(*corev1.Pod); ok {
			out.Items = append(out.Items, *pod)
		}
	}
	out.ResourceVersion = r.last()
	return out
}

// bookmark returns the event that ends the pods with which a watch begins.
func (r *roster) bookmark() watch.Event {
	mark := &corev1.Pod{}
	mark.ResourceVersion, mark.Annotations = r.last(), map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return watch.Event{Type: watch.Bookmark, Object: mark}
}

// list has the pods of a node by name, the newest of each.
type list map[types.NamespacedName]listed

type listed struct {
	pod    *corev1.Pod
	others map[types.UID]bool // see known
}

// add puts a pod into the list, unless it has ended for good.
func (l list) add(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	at, ok := l[name]
	switch {
	case !ok:
		at = listed{pod: pod, others: map[types.UID]bool{}}
	case newer(pod, at.pod):
		at.others[at.pod.UID] = true
		at.pod = pod
	default:
		at.others[pod.UID] = true
	}
	l[name] = at
}

// sum returns a number that changes with the pod. Maps are sorted on the wire.
func (r *roster) sum(pod *corev1.Pod) uint64 {
	text, err := pod.Marshal()
	if err != nil { // it was read from such bytes
		return r.version
	}
	return maphash.Bytes(r.seed, text)
}

// stamp gives a pod the next version.
func (r *roster) stamp(pod *corev1.Pod) *corev1.Pod {
	r.version++
	pod.ResourceVersion = r.last()
	return pod
}

// newer reports whether a pod is younger than another one of the same name. Static pods have no creation time.
func newer(a, b *corev1.Pod) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return seen(a).After(seen(b))
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// seen returns the time in seenAt, or the zero time.
func seen(pod *corev1.Pod) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, pod.Annotations[seenAt]) // the zero time stands for none
	return at
}

// identity returns what tells a pod from others.
func identity(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{}
	out.Namespace, out.Name, out.UID, out.CreationTimestamp = pod.Namespace, pod.Name, pod.UID, pod.CreationTimestamp
	if seen, ok := pod.Annotations[seenAt]; ok {
		out.Annotations = map[string]string{seenAt: seen}
	}
	return out
}
