package outage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Kept has the objects of some kinds as they were seen last, in files of a directory of the node. An agent that starts while the API server is away
// begins with them. Once the API server has answered, the files are only written.
type Kept struct {
	dir     string
	contact *Contact
	alone   func() bool

	mu    sync.Mutex
	files []*keptFile
}

// NewKept returns a Kept of a directory, which exists. With dir "" nothing is kept. alone reports whether no other agent serves the node: only then are
// kept objects used.
func NewKept(dir string, contact *Contact, alone func() bool) *Kept {
	return &Kept{dir: dir, contact: contact, alone: alone}
}

const (
	// keptAfter is how long the API server may take to answer an agent that starts.
	keptAfter = 2 * time.Second
	// keepEvery is the time between two looks whether there is something new to keep.
	keepEvery = 30 * time.Second
	// maxKept bounds a file, in bytes. The objects of 10,000 namespaces take 4 MiB.
	maxKept = 64 << 20
)

// Informer is Contact.Informer for a kind whose objects are kept, in a file with a name.
func (k *Kept) Informer(name string, lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
	if k.dir == "" {
		return k.contact.Informer(lw, kind, resync, by)
	}
	f := &keptFile{path: filepath.Join(k.dir, name+".json"), kind: kind, contact: k.contact, alone: k.alone, asking: k.contact.Asking(lw, kind)}
	f.informer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{ListWithContextFunc: f.asking.ListWithContextFunc, WatchFuncWithContext: f.watch}, kind, resync, by)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.files = append(k.files, f)
	return f.informer
}

// Since returns the age of the oldest objects in use that were kept; zero: there are none.
func (k *Kept) Since() (oldest time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.files {
		if at := f.since(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}

// Start writes the files until ctx ends.
func (k *Kept) Start(ctx context.Context) error {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.keep(ctx)
		}
	}
}

func (k *Kept) keep(ctx context.Context) {
	k.mu.Lock()
	files := k.files
	k.mu.Unlock()
	for _, f := range files {
		if err := f.keep(); err != nil {
			log.FromContext(ctx).Error(err, "nothing kept for a start without the API server")
		}
	}
}

// keptFile has the objects of one kind. Its time is when they were seen to be those of the API server.
type keptFile struct {
	path     string
	kind     runtime.Object
	contact  *Contact
	alone    func() bool
	asking   *toolscache.ListWatch
	informer toolscache.SharedIndexInformer
	version  string // of what was written

	mu sync.Mutex
	// answered reports whether the API server has answered, and used is the age of the objects that are used until it has given its own.
	answered bool
	used     time.Time
}

func (f *keptFile) since() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}

func (f *keptFile) hasAnswered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered
}

func (f *keptFile) note(answered bool, used time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered, f.used = answered, used
}

// answer is a watch of the API server, or why there is none.
type answer struct {
	watch watch.Interface
	err   error
}

// watch watches at the API server. At the agent's start, while it is away, the watch is one of the kept objects.
func (f *keptFile) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if f.hasAnswered() || o.SendInitialEvents == nil || !*o.SendInitialEvents {
		f.note(true, time.Time{})
		return f.asking.WatchWithContext(ctx, o)
	}
	answers := make(chan answer, 1)
	go func() {
		w, err := f.asking.WatchWithContext(ctx, o)
		answers <- answer{w, err}
	}()
	late := time.NewTicker(keptAfter)
	defer late.Stop()
	for {
		select {
		case a := <-answers:
			f.note(ctx.Err() == nil, time.Time{})
			return a.watch, a.err
		case <-late.C:
			if f.contact.Err() == nil || !f.alone() {
				continue
			}
			if objects, at, err := f.read(); err == nil {
				log.FromContext(ctx).Info("the API server is away: begun with what was seen last", "file", f.path, "objects", len(objects), "seen", at.UTC().Format(time.RFC3339))
				f.note(false, at)
				return f.begin(answers, objects, at), nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				log.FromContext(ctx).Error(err, "what was kept for a start without the API server not read")
			}
			late.Stop() // there is nothing but the API server
		}
	}
}

// begin returns a watch of the kept objects. It ends with an expired version when the API server answers: then its objects are listed.
func (f *keptFile) begin(answers <-chan answer, objects []client.Object, at time.Time) watch.Interface {
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	tell := func(kind watch.EventType, object runtime.Object) {
		select {
		case events <- watch.Event{Type: kind, Object: object}:
		case <-out.StopChan():
		}
	}
	go func() {
		defer close(events)
		for _, object := range objects {
			tell(watch.Added, object)
		}
		end := f.newObject()
		end.SetResourceVersion("0")
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		tell(watch.Bookmark, end)
		select {
		case a := <-answers:
			if a.watch != nil {
				a.watch.Stop()
			}
			f.note(true, at)
			expired := apierrors.NewResourceExpired("the API server is back").Status()
			tell(watch.Error, &expired)
		case <-out.StopChan():
			if a := <-answers; a.watch != nil { // by the end of the context at the latest
				a.watch.Stop()
			}
		}
	}()
	return out
}

// newObject returns an empty object of the kind.
func (f *keptFile) newObject() client.Object {
	object, _ := reflect.TypeAssert[client.Object](reflect.New(reflect.TypeOf(f.kind).Elem())) // informers have no other kinds
	object.GetObjectKind().SetGroupVersionKind(f.kind.GetObjectKind().GroupVersionKind())
	return object
}

// read returns the objects and their age.
func (f *keptFile) read() (objects []client.Object, at time.Time, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, at, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, at, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKept))
	if err != nil {
		return nil, at, fmt.Errorf("read %s: %w", f.path, err)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, at, fmt.Errorf("read %s: %w", f.path, err)
	}
	for i, one := range raw {
		object := f.newObject()
		if err := json.Unmarshal(one, object); err != nil || object.GetName() == "" {
			return nil, at, fmt.Errorf("read %s: object %d: want a name: %w", f.path, i, err)
		}
		objects = append(objects, object)
	}
	return objects, info.ModTime(), nil
}

// keep writes the file, if the API server is there and the objects are its.
func (f *keptFile) keep() error {
	if f.contact.Away() > 0 || !f.since().IsZero() || !f.informer.HasSynced() {
		return nil
	}
	now, version := time.Now(), f.informer.LastSyncResourceVersion()
	if version == f.version {
		err := os.Chtimes(f.path, now, now)
		if !errors.Is(err, fs.ErrNotExist) { // a removed file is written again
			return err
		}
	}
	text, err := json.Marshal(f.informer.GetStore().List())
	if err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	if len(text) > maxKept {
		return fmt.Errorf("write %s: %d bytes are too many", f.path, len(text))
	}
	if err := replace(f.path, text); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	f.version = version
	return nil
}

// replace writes a file as a whole: another agent of the node may read or write it.
func replace(path string, text []byte) error {
	next, err := os.CreateTemp(filepath.Dir(path), ".*")
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}
