package program

import (
	"path/filepath"
	"testing"
)

func TestUnstage_pinsOfKubernetes_leadToPublishedModules(t *testing.T) {
	from, dir := t.TempDir(), filepath.Join(t.TempDir(), "module")
	write(t, filepath.Join(from, "go.mod"), "module k8s.io/kubernetes\n\nrequire k8s.io/api v0.0.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n")
	write(t, filepath.Join(from, "go.sum"), "sums\n")
	if err := unstage(from, dir, Kubernetes("1.35.4")); err != nil {
		t.Fatal(err)
	}
	const want = "module release\n\nrequire k8s.io/api v0.0.0\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.35.4\n)\n\nrequire k8s.io/kubernetes v1.35.4\n"
	if got := read(t, filepath.Join(dir, "go.mod")); got != want {
		t.Errorf("go.mod is\n%s\nwant\n%s", got, want)
	}
	if got := read(t, filepath.Join(dir, "go.sum")); got != "sums\n" {
		t.Errorf("go.sum is %q", got)
	}
	// Go has added to it: it stays.
	write(t, filepath.Join(dir, "go.sum"), "more\n")
	if err := unstage(from, dir, Kubernetes("1.35.4")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "go.sum")); got != "more\n" {
		t.Errorf("a second time, go.sum is %q", got)
	}
}

func TestBorrow_programsOfAnotherSet_areThereWithOwnOnes(t *testing.T) {
	base, own := t.TempDir(), Set{Dir: t.TempDir()}
	for _, file := range []string{filepath.Join(base, "etcd"), filepath.Join(base, "kubelet"), filepath.Join(own.Dir, "kubelet")} {
		write(t, file, file)
	}
	for range 2 {
		if err := own.Borrow(base); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"etcd": base, "kubelet": own.Dir} {
		if got := read(t, filepath.Join(own.Dir, name)); got != filepath.Join(want, name) {
			t.Errorf("%s is %q", name, got)
		}
	}
}
