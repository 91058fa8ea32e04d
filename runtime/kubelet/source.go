package kubelet

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"istio-pod-network-controller/internal/jitter"
)

// Mode is where a Source takes pods from.
type Mode string

// The modes. Auto is the kubelet while it serves its pods, and else the API server.
const (
	Auto    Mode = "auto"
	Kubelet Mode = "kubelet"
	API     Mode = "api"
)

// Source gives an informer the pods of the node, from the kubelet or the API server. When that changes, the informer lists them anew: it compares,
// so that no pod is forgotten and none is news again. Only one informer may use it.
type Source struct {
	standing

	client *Client
	mode   Mode
	api    cache.ListerWatcherWithContext

	roster *roster
	// following is closed when no watch uses the roster any more.
	following <-chan struct{}
	// failures are how often in a row the kubelet was given up. It is not asked again before a time.
	failures  int
	notBefore time.Time

	times times
}

// times are how long a Source waits.
type times struct {
	// list is the mean time between two questions for all pods: the kubelet's stream leaves out edits of metadata, and events that come too fast.
	list time.Duration
	// patience is how long Auto waits for a kubelet that has served its pods, before it takes the API server: kubelets restart.
	patience time.Duration
	// look is the mean time between two looks for a kubelet that serves its pods, while the API server does.
	look time.Duration
}

// NewSource returns a Source. api lists and watches the node's pods at the API server. strip returns the parts of the
// kubelet's pods that the informer keeps; nil keeps all.
func NewSource(client *Client, mode Mode, api cache.ListerWatcherWithContext, strip func(*corev1.Pod) *corev1.Pod) *Source {
	free := make(chan struct{})
	close(free)
	return &Source{client: client, mode: mode, api: api, roster: newRoster(strip), following: free, times: times{list: 5 * time.Second, patience: time.Minute, look: 10 * time.Second}}
}

// ListWithContext lists the pods, for an informer that cannot begin with a watch.
func (s *Source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	for {
		from, err := s.choose(ctx)
		switch {
		case err != nil:
			return nil, err
		case from != nil:
			from.close() // the watch that follows begins with all pods, too
			return s.roster.whole(from.pods), nil
		}
		looking, look := s.look(ctx)
		list, err := s.api.ListWithContext(looking, o)
		if !look.end() {
			return list, err
		}
	}
}

// WatchWithContext watches the pods. The watch ends with an expired version when they come from somewhere else.
func (s *Source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	for {
		from, err := s.choose(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case from != nil && !initial && o.ResourceVersion != s.roster.last():
			from.close()
			return nil, elsewhere()
		case from != nil:
			return s.follow(ctx, from, initial), nil
		case !initial && isOurs(o.ResourceVersion):
			return nil, elsewhere()
		}
		looking, look := s.look(ctx)
		w, err := s.api.WatchWithContext(looking, o)
		if err == nil {
			return look.during(w), nil
		}
		if !look.end() {
			return nil, err
		}
	}
}

// choose returns the kubelet's list of pods, which goes on as a stream, or nil if the API server is to be asked. With the mode Kubelet it waits for the
// kubelet until ctx ends.
func (s *Source) choose(ctx context.Context) (*stream, error) {
	select {
	case <-s.following:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.mode == API || s.mode == Auto && time.Now().Before(s.notBefore) {
		s.takes(ctx, API)
		return nil, nil
	}
	for failures := 1; ; failures++ {
		from, err := s.client.list(ctx, s.roster.reader)
		switch {
		case err == nil:
			s.takes(ctx, Kubelet)
			return from, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case s.mode == Auto:
			s.takes(ctx, API)
			return nil, nil
		}
		s.fails(ctx, err)
		if !jitter.Wait(ctx, min(jitter.Bound(failures), longestWait)) {
			return nil, ctx.Err()
		}
	}
}

// isOurs reports whether a version is one of the roster's.
func isOurs(version string) bool {
	n, err := strconv.ParseUint(version, 10, 64)
	return err == nil && n >= firstVersion
}

// elsewhere has an informer list the pods anew.
func elsewhere() *apierrors.StatusError {
	return apierrors.NewResourceExpired("the pods of the node come from somewhere else now")
}

// endOfWatch is the last event of a watch whose pods come from somewhere else from now on.
func endOfWatch() watch.Event {
	status := elsewhere().Status()
	return watch.Event{Type: watch.Error, Object: &status}
}

// lookout looks for the kubelet while the API server is asked.
type lookout struct {
	stop  context.CancelFunc
	found chan struct{} // closed when the kubelet serves its pods
	done  chan struct{} // closed when nobody looks any more
}

// look begins to look for the kubelet. The context ends with the look, and when the kubelet serves its pods.
func (s *Source) look(ctx context.Context) (context.Context, *lookout) {
	l := &lookout{found: make(chan struct{}), done: make(chan struct{})}
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		for s.mode == Auto && jitter.Wait(ctx, 2*s.times.look) {
			if time.Now().Before(s.notBefore) || !s.client.serves(ctx) {
				continue
			}
			close(l.found)
			l.stop()
			return
		}
	}()
	return ctx, l
}

// end ends the look, and reports whether the kubelet was found.
func (l *lookout) end() bool {
	l.stop()
	<-l.done
	select {
	case <-l.found:
		return true
	default:
		return false
	}
}

// during returns the API server's watch, until the kubelet is found.
func (l *lookout) during(w watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer l.end()
		defer w.Stop()
		for {
			var e watch.Event
			more, moved := true, false
			select {
			case <-out.StopChan():
				return
			case <-l.found:
				e, moved = endOfWatch(), true
			case e, more = <-w.ResultChan():
			}
			if !more {
				return
			}
			select {
			case events <- e:
			case <-out.StopChan():
				return
			}
			if moved {
				return
			}
		}
	}()
	return out
}
