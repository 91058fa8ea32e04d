package kubelet

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestPieces_readsWhatTheKubeletSends(t *testing.T) {
	want := [][]byte{[]byte("a"), {}, bytes.Repeat([]byte("b"), 5000), []byte("c")}
	text, err := proto.Marshal(&podsv1alpha1.ListPodsResponse{Pods: want})
	if err != nil {
		t.Fatal(err)
	}
	read := func(text []byte) (got [][]byte, err error) {
		p := pieces{read: func(message []byte) error { got = append(got, slices.Clone(message)); return nil }}
		err = p.unmarshal(bufio.NewReader(bytes.NewReader(text)), len(text))
		return got, err
	}
	if got, err := read(text); err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%d messages, error %v", len(got), err)
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"a pod cut off":     {text[:len(text)-1], "in the middle of a pod"},
		"a size cut off":    {text[:len(text)-2], "in the middle of a field"},
		"another field":     {[]byte{2<<3 | 2, 1, 'a'}, "a field with the tag 18"},
		"a size of all":     {[]byte{podsTag, 0xff, 0xff, 0xff, 0xff, 0x0f}, "a pod of 4294967295 bytes, and 6 in all"},
		"a size too large":  {append([]byte{podsTag}, bytes.Repeat([]byte{0xff}, 11)...), "in the middle of a field"},
		"nothing but a tag": {[]byte{podsTag}, "in the middle of a field"},
	} {
		if _, err := read(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.want)
		}
	}
}
