package install

import (
	"bytes"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// Whatever text a runtime would load: the entry is in it once, nothing else is different, and taking it out gives the very
// same text.
func FuzzEdit(f *testing.F) {
	for _, text := range []string{plain, chained, single, layouts()["text that a formatter would change"].want} {
		f.Add([]byte(text))
	}
	f.Add([]byte(compact(ourEntry)))
	f.Add([]byte(compact(ourEntry, `{"type":"a"}`, ourEntry)))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[ ` + ourEntry + `,` + ourEntry + `  ,   {"type":"a"}]}`))
	f.Add([]byte(`{"plugins":[{"type":"a"}],"plugins":[{"type":"b"}],"name":"n","cniVersion":"1.0.0"}`))
	e := entry{"istio-pod-network-cni", []byte(ourEntry)}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseList(data)
		if err != nil {
			return
		}
		with := l.withEntry(e)
		wantValid(t, with)
		again, err := parseList(with)
		if err != nil || len(again.indicesOf(e.kind)) != 1 || len(again.plugins)-1 != len(l.plugins)-len(l.indicesOf(e.kind)) {
			t.Fatalf("%v\n%s\n%s", err, data, with)
		}
		if same := again.withEntry(e); !bytes.Equal(same, with) {
			t.Errorf("a second time it differs:\n%s\n%s", with, same)
		}
		rest := again.withoutType(e.kind)
		if len(l.indicesOf(e.kind)) == 0 && !bytes.Equal(rest, data) {
			t.Errorf("taken out again:\n%q\n%q", rest, data)
		}
		if len(again.plugins) > 1 {
			wantValid(t, l.withoutType(e.kind))
		}
	})
}

func wantValid(t *testing.T, list []byte) {
	t.Helper()
	if _, err := libcni.NetworkConfFromBytes(list); err != nil {
		t.Errorf("no runtime would load it any more: %v\n%s", err, list)
	}
}
