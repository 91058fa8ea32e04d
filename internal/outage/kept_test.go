package outage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

func newNamespace(name, asks string) *metav1.PartialObjectMetadata {
	out := &metav1.PartialObjectMetadata{}
	out.SetGroupVersionKind(namespaceKind)
	out.Name, out.ResourceVersion, out.Annotations = name, "5", map[string]string{"asks": asks}
	return out
}

// switchedAPI is an API server that may be away.
type switchedAPI struct {
	mu   sync.Mutex
	away bool
	has  []runtime.Object
}

func (a *switchedAPI) set(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// ListWithContext is not called by an informer that watches from the first object on.
func (*switchedAPI) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return nil, errors.New("a list")
}

// WatchWithContext watches its objects.
func (a *switchedAPI) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return nil, fmt.Errorf("dial tcp 10.0.0.1:443: %w", syscall.ECONNREFUSED)
	}
	w := watch.NewFakeWithChanSize(len(a.has)+1, false)
	for _, object := range a.has {
		w.Add(object.DeepCopyObject())
	}
	end := newNamespace("", "")
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	w.Action(watch.Bookmark, end)
	return w, nil
}

// namespacesOf runs an informer of an agent that starts now, for a while. It returns what the agent knows after each step.
func namespacesOf(t *testing.T, dir string, api *switchedAPI, steps ...func(k *Kept, known func() string)) {
	t.Helper()
	contact := &Contact{}
	k := NewKept(dir, contact, func() bool { return true })
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(namespaceKind)
	lists := &toolscache.ListWatch{ListWithContextFunc: api.ListWithContext, WatchFuncWithContext: api.WatchWithContext}
	informer := k.Informer("namespaces", lists, kind, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	running.Go(func() { _ = k.Start(ctx) })
	for _, step := range steps {
		step(k, func() string {
			synctest.Wait()
			if !informer.HasSynced() {
				return "nothing"
			}
			object, ok, err := informer.GetStore().GetByKey("shop")
			ns, isNamespace := object.(*metav1.PartialObjectMetadata)
			if err != nil || !ok || !isNamespace {
				return "no namespace"
			}
			return ns.Annotations["asks"]
		})
	}
	cancel()
	running.Wait()
}

func wait(d time.Duration) func(*Kept, func() string) {
	return func(*Kept, func() string) { <-time.After(d) }
}

func TestKept_agentStartsInAnOutage_beginsWithWhatWasSeenLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, api := t.TempDir(), &switchedAPI{has: []runtime.Object{newNamespace("shop", "before"), newNamespace("other", "x")}}
		wants := func(what, want string, isKept bool) func(*Kept, func() string) {
			return func(k *Kept, known func() string) {
				if got, since := known(), k.Since(); got != want || since.IsZero() == isKept {
					t.Errorf("%s: %q of %s, want %q", what, got, since, want)
				}
			}
		}
		namespacesOf(t, dir, api, wants("the first agent", "before", false), wait(time.Minute))
		api.set(true)
		namespacesOf(t, dir, api,
			wait(time.Second), wants("at once", "nothing", false),
			wait(20*time.Second), wants("in the outage", "before", true),
			wait(time.Hour), wants("in the second hour", "before", true),
			func(*Kept, func() string) {
				api.has[0] = newNamespace("shop", "after")
				api.set(false)
			},
			wait(time.Minute), wants("afterwards", "after", false),
			func(*Kept, func() string) { api.set(true) },
			wait(time.Minute), wants("in the next outage", "after", false),
		)
		if text, err := os.ReadFile(filepath.Join(dir, "namespaces.json")); err != nil || !strings.Contains(string(text), `"after"`) {
			t.Errorf("kept: %s, %v", text, err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("%d files, %v", len(files), err)
		}
	})
}

// Whatever is in the file, an agent waits for the API server as it did without.
func TestKept_fileIsOfNoUse_waitsForTheAPIServer(t *testing.T) {
	for name, text := range map[string]string{
		"none": "", "no JSON": "[{", "no list": `{"a":1}`, "no object": `[1]`, "no name": `[{"metadata":{}}]`, "no metadata": `[{"metadata":7}]`,
	} {
		synctest.Test(t, func(t *testing.T) {
			dir, api := t.TempDir(), &switchedAPI{away: true, has: []runtime.Object{newNamespace("shop", "now")}}
			if name != "none" {
				if err := os.WriteFile(filepath.Join(dir, "namespaces.json"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			namespacesOf(t, dir, api, wait(time.Minute),
				func(k *Kept, known func() string) {
					if got := known(); got != "nothing" || !k.Since().IsZero() {
						t.Errorf("%s: in the outage: %q of %s", name, got, k.Since())
					}
					api.set(false)
				},
				wait(time.Minute),
				func(_ *Kept, known func() string) {
					if got := known(); got != "now" {
						t.Errorf("%s: afterwards: %q", name, got)
					}
				})
		})
	}
}
