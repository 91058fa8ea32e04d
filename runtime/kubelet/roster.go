package kubelet

import (
	"errors"
	"fmt"
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

// roster has the kubelet's pods as an informer knows them. It turns messages into events of an informer:
//
//   - The kubelet leaves a pod's resource version as it saw it first, whatever is edited. An informer does not pass on a change without a new
//     version, so each change gets one here. What says nothing new is no event.
//   - The kubelet knows pods by UID, an informer by name. A static pod's predecessor, and a pod that ends slowly, may be there beside a new pod of
//     that name: the newest one counts, and the end of another one is no event.
//   - An event may carry a pod as it was before an edit that a list has shown already: the kubelet sends its worker's copy, and lists what it manages.
//     So an event is not believed if its metadata or specification, which others write, are not those of the roster: a list decides.
//   - The kubelet says that a pod is deleted once its containers have ended for good, although it goes on listing it. It is not listed here again.
type roster struct {
	reader

	pods    map[types.NamespacedName]known
	version uint64
	// ended are sums of messages about pods that have ended for good: those of the newest list.
	ended map[uint64]bool
}

// known is a pod as it was told last.
type known struct {
	pod *corev1.Pod // with its names, UID and times only
	// message, written and status are sums. The kubelet's restart changes messages, which are quicker to compare, and not the others.
	message, written, status uint64
	// others are older pods of that name that have not ended, as far as is known.
	others map[types.UID]bool
}

func newRoster(strip func(*corev1.Pod) *corev1.Pod) *roster {
	return &roster{reader: reader{strip: strip, seed: maphash.MakeSeed()}, pods: map[types.NamespacedName]known{}, version: firstVersion}
}

// last returns the version of the newest event.
func (r *roster) last() string { return strconv.FormatUint(r.version, 10) }

// changed returns the event of a pod that was added or modified: none if it says nothing new.
func (r *roster) changed(p told) []watch.Event {
	name := nameOf(p.id)
	was, isKnown := r.pods[name]
	now := known{pod: p.id, message: p.message, written: p.written, status: p.status, others: was.others}
	switch {
	case !isKnown:
		now.others = map[types.UID]bool{}
	case was.pod.UID == p.id.UID && was.written == now.written && was.status == now.status:
		was.message = now.message
		r.pods[name] = was
		return nil
	case was.pod.UID != p.id.UID && !newer(p.id, was.pod):
		was.others[p.id.UID] = true
		return nil
	case was.pod.UID != p.id.UID:
		now.others[was.pod.UID] = true
	}
	r.pods[name] = now
	kind := watch.Modified
	if !isKnown {
		kind = watch.Added
	}
	return []watch.Event{{Type: kind, Object: r.stamp(p.pod)}}
}

// contradicts reports whether an event has other metadata, or another specification, of a pod than the roster: it may be older than that, or newer.
func (r *roster) contradicts(p told) bool {
	was, isKnown := r.pods[nameOf(p.id)]
	return isKnown && was.pod.UID == p.id.UID && was.written != p.written
}

// removed returns the event of a pod that has ended: none if it was not the newest of its name. If others remain, only a list says how they are.
func (r *roster) removed(pod *corev1.Pod) (out []watch.Event, remain bool) {
	name := nameOf(pod)
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

// listed returns the events of a list: of what is new in it, and of pods that it lacks. Pods in later have been told since the list was asked for.
func (r *roster) listed(all list, later map[types.UID]bool) []watch.Event {
	var out []watch.Event
	for name, was := range r.pods {
		if _, ok := all[name]; !ok && !later[was.pod.UID] {
			gone, _ := r.removed(was.pod)
			out = append(out, gone...)
		}
	}
	for name, l := range all {
		if later[l.id.UID] {
			continue
		}
		if l.pod != nil {
			out = append(out, r.changed(l.told)...)
		}
		if now, ok := r.pods[name]; ok {
			now.others = l.others
			r.pods[name] = now
		}
	}
	return out
}

// whole returns all pods of a list, and forgets what was told before.
func (r *roster) whole(all list) *corev1.PodList {
	clear(r.pods)
	out := &corev1.PodList{}
	for _, e := range r.listed(all, nil) {
		if pod, ok := e.Object.(*corev1.Pod); ok {
			out.Items = append(out.Items, *pod)
		}
	}
	out.ResourceVersion = r.last()
	return out
}

// knowing returns a reader that does not decode again what is known already.
func (r *roster) knowing() reader {
	out := r.reader
	out.known = make(map[uint64]told, len(r.pods)+len(r.ended))
	for sum := range r.ended {
		out.known[sum] = told{message: sum, hasEnded: true}
	}
	for _, k := range r.pods {
		out.known[k.message] = told{id: k.pod, message: k.message}
	}
	return out
}

// bookmark returns the event that ends the pods with which a watch begins.
func (r *roster) bookmark() watch.Event {
	mark := &corev1.Pod{}
	mark.ResourceVersion, mark.Annotations = r.last(), map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return watch.Event{Type: watch.Bookmark, Object: mark}
}

// stamp gives a pod the next version.
func (r *roster) stamp(pod *corev1.Pod) *corev1.Pod {
	r.version++
	pod.ResourceVersion = r.last()
	return pod
}

// reader reads messages about pods.
type reader struct {
	// strip returns the parts of a pod that an informer keeps; nil keeps all. Whole pods would take several times the memory.
	strip func(*corev1.Pod) *corev1.Pod
	seed  maphash.Seed // the zero value: no sums are wanted
	known map[uint64]told
}

// read returns the pod of a message.
func (r reader) read(message []byte) (told, error) {
	var sum uint64
	if r.seed != (maphash.Seed{}) {
		sum = maphash.Bytes(r.seed, message)
		if p, ok := r.known[sum]; ok {
			return p, nil
		}
	}
	pod, err := decode(message)
	if err != nil {
		return told{}, err
	}
	p := told{id: identity(pod), pod: pod, hasEnded: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed}
	if r.seed != (maphash.Seed{}) {
		meta, errMeta := pod.ObjectMeta.Marshal()
		spec, errSpec := pod.Spec.Marshal()
		status, errStatus := pod.Status.Marshal()
		if err := errors.Join(errMeta, errSpec, errStatus); err != nil {
			return told{}, fmt.Errorf("the kubelet's pod %s: %w", nameOf(pod), err)
		}
		p.message, p.written, p.status = sum, maphash.Bytes(r.seed, append(meta, spec...)), maphash.Bytes(r.seed, status)
	}
	if r.strip != nil {
		p.pod = r.strip(pod)
	}
	return p, nil
}

// told is a pod as the kubelet has told it.
type told struct {
	id  *corev1.Pod // with its names, UID and times only
	pod *corev1.Pod // nil: it is as it was told last
	// message is the sum of the message, written one of what others write, the metadata and the specification, and status one of the status.
	message, written, status uint64
	hasEnded                 bool
}

// list has the pods of a node by name, the newest of each.
type list map[types.NamespacedName]listed

type listed struct {
	told

	others map[types.UID]bool // see known
}

// add puts a pod into the list, unless it has ended for good.
func (l list) add(p told) bool {
	if p.hasEnded {
		return false
	}
	at, ok := l[nameOf(p.id)]
	switch {
	case !ok:
		at = listed{told: p, others: map[types.UID]bool{}}
	case newer(p.id, at.id):
		at.others[at.id.UID] = true
		at.told = p
	default:
		at.others[p.id.UID] = true
	}
	l[nameOf(p.id)] = at
	return true
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
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
	if at, ok := pod.Annotations[seenAt]; ok {
		out.Annotations = map[string]string{seenAt: at}
	}
	return out
}
