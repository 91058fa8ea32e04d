package kubelet

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"istio-pod-network-controller/internal/jitter"
)

// longestWait bounds the wait between two attempts to reach the kubelet.
const longestWait = 5 * time.Second

// feed is a watch that an informer reads.
type feed struct {
	events chan watch.Event
	watch  *watch.ProxyWatcher
}

var errStopped = errors.New("the informer has ended its watch")

// tell gives events to the informer, one after the other.
func (f feed) tell(events ...watch.Event) error {
	for _, e := range events {
		select {
		case f.events <- e:
		case <-f.watch.StopChan():
			return errStopped
		}
	}
	return nil
}

// follow returns a watch of the kubelet's pods, which begins with all of them, or with what has changed since the watch before it.
func (s *Source) follow(ctx context.Context, from *stream, initial bool) watch.Interface {
	free := make(chan struct{})
	s.following = free
	f := feed{events: make(chan watch.Event)}
	f.watch = watch.NewProxyWatcher(f.events)
	ctx, stop := context.WithCancel(ctx)
	go func() {
		select {
		case <-f.watch.StopChan():
			stop()
		case <-ctx.Done():
		}
	}()
	go func() {
		defer close(free)
		defer close(f.events)
		defer stop()
		if initial {
			clear(s.roster.pods)
		}
		err := f.tell(s.roster.listed(from.pods)...)
		if initial && err == nil {
			err = f.tell(s.roster.bookmark())
		}
		for err == nil {
			isOld, failure := s.pass(f, from)
			if failure != nil {
				s.fails(ctx, failure)
			}
			if from, err = s.again(ctx); err == nil {
				news := s.roster.listed(from.pods)
				if isOld {
					s.misses(len(news))
				}
				err = f.tell(news...)
			}
		}
		if from != nil {
			from.close()
		}
		if ctx.Err() == nil {
			_ = f.tell(endOfWatch()) // the informer may have ended its watch: it lists anew in any case
		}
	}()
	return f.watch
}

// pass passes on what the kubelet says, until its stream is old, or has ended with an error. It closes the stream.
func (s *Source) pass(f feed, from *stream) (isOld bool, err error) {
	defer from.close()
	old := time.AfterFunc(s.times.renewal/2+jitter.Full(s.times.renewal), from.close)
	for {
		pod, isDeleted, err := from.event()
		if err != nil {
			if isOld = !old.Stop(); isOld {
				err = nil
			}
			return isOld, err
		}
		s.hears()
		news, remain := []watch.Event(nil), false
		if isDeleted {
			news, remain = s.roster.removed(pod)
		} else {
			news = s.roster.changed(pod)
		}
		if err := f.tell(news...); err != nil || remain {
			old.Stop()
			return false, err
		}
	}
}

// again opens the next stream. Auto gives up a kubelet that does not answer for long.
func (s *Source) again(ctx context.Context) (*stream, error) {
	since := time.Now()
	for failures := 1; ; failures++ {
		from, err := s.client.list(ctx)
		if err == nil {
			s.failures = 0
			s.takes(ctx, Kubelet)
			return from, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.fails(ctx, err)
		if s.mode == Auto && time.Since(since) > s.times.patience {
			s.failures++
			s.notBefore = time.Now().Add(jitter.Full(jitter.Bound(s.failures)))
			return nil, err
		}
		if !jitter.Wait(ctx, min(jitter.Bound(failures), longestWait)) {
			return nil, ctx.Err()
		}
	}
}
