package kubelet

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// asList is an answer to ListPods.
func asList(messages ...[]byte) (out []byte) {
	for _, m := range messages {
		out = append(binary.AppendUvarint(binary.AppendUvarint(out, podsTag), uint64(len(m))), m...)
	}
	return out
}

// Whatever comes from the kubelet's socket is refused with an error, or becomes events that an informer can follow: each is of a pod with a name and a UID,
// its version is the next one, and only a pod that is known is modified or deleted. kinds say what each message comes as.
func FuzzMessages(f *testing.F) {
	message := func(change func(*corev1.Pod)) []byte {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		pod.Namespace, pod.Name, pod.UID = "shop", "cart", "u1"
		change(pod)
		text, err := pod.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	plain := message(func(*corev1.Pod) {})
	f.Add(asList(plain, message(func(p *corev1.Pod) { p.UID = "u2" }), plain), []byte{0, 1, 2})
	f.Add(asList(plain, message(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), message(func(p *corev1.Pod) { p.Annotations = map[string]string{sourceOf: fromAPI, seenAt: "x"} })), []byte{3, 0, 1})
	f.Add(append(asList(plain), podsTag, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), []byte{1})
	f.Fuzz(func(t *testing.T, answer, kinds []byte) {
		r, n := newRoster(identity), 0
		knows := follower{pods: map[types.NamespacedName]types.UID{}, version: firstVersion}
		take := func(message []byte) error {
			p, err := r.read(message)
			if err != nil {
				return err
			}
			kind := byte(0)
			if n < len(kinds) {
				kind = kinds[n]
			}
			n++
			switch kind % 3 {
			case 0:
				knows.follow(t, r.changed(p))
			case 1:
				gone, _ := r.removed(p.id)
				knows.follow(t, gone)
			default:
				l := list{}
				l.add(p)
				knows.follow(t, r.listed(l, map[types.UID]bool{}))
			}
			return nil
		}
		if err := (&pieces{read: take}).unmarshal(bufio.NewReader(bytes.NewReader(answer)), len(answer)); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

// follower has an informer's knowledge.
type follower struct {
	pods    map[types.NamespacedName]types.UID
	version uint64
}

func (i *follower) follow(t *testing.T, events []watch.Event) {
	t.Helper()
	for _, e := range events {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || pod.Name == "" || pod.Namespace == "" || pod.UID == "" {
			t.Fatalf("%s %+v", e.Type, e.Object)
		}
		i.version++
		if pod.ResourceVersion != strconv.FormatUint(i.version, 10) {
			t.Errorf("version %s, want %d", pod.ResourceVersion, i.version)
		}
		_, known := i.pods[nameOf(pod)]
		switch {
		case e.Type == watch.Added && known, e.Type == watch.Modified && !known, e.Type == watch.Deleted && !known:
			t.Errorf("%s of %s, known %t", e.Type, nameOf(pod), known)
		case e.Type == watch.Deleted:
			delete(i.pods, nameOf(pod))
		default:
			i.pods[nameOf(pod)] = pod.UID
		}
	}
}
