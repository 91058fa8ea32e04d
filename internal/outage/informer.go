package outage

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"istio-pod-network-controller/internal/jitter"
)

// Informer makes an informer that notices within lastWait that the API server is back: see Asking.
func (c *Contact) Informer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(c.Asking(lw, kind), kind, resync, indexers)
}

// Asking returns what lists and watches for an informer, which notices within lastWait that the API server is back. client-go's own waits up to a
// minute after an outage of minutes, or the sixth short one in a row (https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go,
// defaultBackoffMax and its jitter), and offers no setting. So the errors that would make it wait are kept from it.
func (c *Contact) Asking(lw toolscache.ListerWatcher, kind runtime.Object) *toolscache.ListWatch {
	from := toolscache.ToListerWatcherWithContext(lw)
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return retryWhileAway(ctx, c, kind, func() (runtime.Object, error) { return from.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := retryWhileAway(ctx, c, kind, func() (watch.Interface, error) { return from.WatchWithContext(ctx, o) })
			if err != nil {
				return nil, err
			}
			return withoutOutages(w, plannedEnd(o, time.Now())), nil
		},
	}
}

// shortestWatch is how long a watch has to last: client-go takes an earlier end without an event for an error.
const shortestWatch = 1100 * time.Millisecond

// plannedEnd returns when the API server ends a watch that client-go asks for: after 5 to 10 minutes, at another time for each agent.
func plannedEnd(o metav1.ListOptions, now time.Time) time.Time {
	if o.TimeoutSeconds == nil {
		return now
	}
	return now.Add(time.Duration(*o.TimeoutSeconds) * time.Second)
}

// withoutOutages returns a watch with the events of w. It ends when w ends or reports that the API server is away, but not before
// shortestWatch, and as much later as untilEnd says: client-go watches again at once.
func withoutOutages(w watch.Interface, planned time.Time) watch.Interface {
	began := time.Now()
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer w.Stop()
		for {
			select {
			case <-out.StopChan():
				return
			case e, more := <-w.ResultChan():
				if !more || e.Type == watch.Error && away(apierrors.FromObject(e.Object)) {
					select {
					case <-time.After(untilEnd(began, planned)):
					case <-out.StopChan():
					}
					return
				}
				select {
				case events <- e:
				case <-out.StopChan():
					return
				}
			}
		}
	}()
	return out
}

// longestAfterACut bounds how long after a cut the agent watches again. Until then it learns of no new pod.
const longestAfterACut = time.Second

// untilEnd returns how much later than the API server's watch the one of client-go ends: not at all after a regular end, up to longestAfterACut
// after a cut, since watches of all agents end at once when an API server goes, and up to the mean wait of an outage if the watch was short: the
// server may come and go.
func untilEnd(began, planned time.Time) time.Duration {
	lasted := time.Since(began)
	least := shortestWatch - lasted
	switch {
	case time.Until(planned) < time.Second:
		return least
	case lasted >= shortOutage:
		return jitter.Full(longestAfterACut)
	}
	return max(least, jitter.Full(longestInAShortOne/2))
}

// lastWait bounds a wait between two attempts, and so how long the agent takes to notice that an outage is over.
const lastWait = 15 * time.Second

// RightsLimit is how long an answer that the agent lacks a right counts as an outage: an API server that starts gives it until it has
// read the roles.
const RightsLimit = 30 * time.Second

// retryWhileAway calls f again while the API server is away. It returns f's first other answer, or its last one when ctx ends. Each attempt is
// noted: an answer that refuses the agent is a loss of contact, since it learns nothing by it. Any other answer is contact.
func retryWhileAway[T any](ctx context.Context, c *Contact, kind runtime.Object, f func() (T, error)) (T, error) {
	for start := time.Now(); ; {
		got, err := f()
		gone, refused := err != nil && away(err), apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		switch {
		case ctx.Err() != nil: // the error is not the API server's, and nobody asks any more
			c.succeeded(kind)
		case gone || refused:
			c.Note(ctx, kind, err)
		default:
			c.Note(ctx, kind, nil)
		}
		starting := refused && time.Since(start) < RightsLimit
		if !gone && !starting || !jitter.Wait(ctx, longestWait(time.Since(start))) {
			return got, err
		}
	}
}

// longestInAShortOne bounds each wait in an outage of less than shortOutage, such as a restart. Shorter waits at first would have all agents
// ask most often when the API server has just gone, and again while it starts.
const (
	longestInAShortOne = 8 * time.Second
	shortOutage        = time.Minute
)

// longestWait bounds the next wait in an outage that has lasted for so long. The wait itself is random.
func longestWait(outage time.Duration) time.Duration {
	if outage < shortOutage {
		return longestInAShortOne
	}
	return lastWait
}

// away reports whether an error says that the API server cannot be reached, or cannot answer for now. A resource version that is to come does not
// count: client-go then asks for another one.
func away(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return true
	}
	code := answer.Status().Code
	return !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) && (code >= http.StatusInternalServerError || code == http.StatusTooManyRequests)
}
