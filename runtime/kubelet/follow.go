package kubelet

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
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
		err := f.tell(s.begins(from)...)
		if initial && err == nil {
			err = f.tell(s.roster.bookmark())
		}
		for err == nil {
			if failure := s.pass(ctx, f, from); ctx.Err() == nil && failure != nil {
				s.fails(ctx, failure)
			}
			if from, err = s.again(ctx); err == nil {
				err = f.tell(s.begins(from)...)
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

// begins returns the news of the pods with which a stream begins.
func (s *Source) begins(from *stream) []watch.Event {
	news := s.roster.listed(from.pods, nil)
	from.pods = nil // they are not read again
	return news
}

// heard is a message of the kubelet, or the end of its stream.
type heard struct {
	told

	isDeleted bool
	err       error
}

// listen gives what a stream says, until it ends or done is closed.
func (s *stream) listen(done <-chan struct{}) <-chan heard {
	out := make(chan heard)
	go func() {
		for h := (heard{}); h.err == nil; {
			h.told, h.isDeleted, h.err = s.event()
			select {
			case out <- h:
			case <-done:
				return
			}
		}
	}()
	return out
}

// answered is a list that the kubelet was asked for.
type answered struct {
	pods  list
	ended map[uint64]bool // see roster
	err   error
}

// pass passes on what the kubelet says, until its stream ends. It closes the stream. From time to time it asks for all pods, and passes on what the
// stream has left out. A pod of which the stream says something meanwhile is left to the next list: it is not known which of the two is older.
func (s *Source) pass(ctx context.Context, f feed, from *stream) error {
	done := make(chan struct{})
	defer close(done)
	defer from.close()
	says, ask := from.listen(done), time.NewTimer(jitter.Full(2*s.times.list))
	defer ask.Stop()
	lists, later := make(chan answered, 1), map[types.UID]bool{}
	isAsked, soon, failures := false, false, 0
	for {
		var news []watch.Event
		select {
		case h := <-says:
			if h.err != nil {
				return h.err
			}
			later[h.id.UID] = true
			var remain bool
			if news, remain = s.takesIn(h); remain && !isAsked && !soon {
				ask.Reset(s.untilNextList(true))
			}
			soon = soon || remain
		case <-ask.C:
			isAsked, soon = true, false
			clear(later)
			r := s.roster.knowing()
			go func() { lists <- s.relist(ctx, r) }()
			continue
		case l := <-lists:
			isAsked = false
			ask.Reset(s.untilNextList(soon))
			var err error
			if news, err = s.compares(l, later); err == nil {
				failures = 0
			} else if failures++; failures == mostFailures {
				return err
			}
		}
		if err := f.tell(news...); err != nil {
			return err
		}
	}
}

// soonest is the mean wait before a list that an event makes necessary: many pods that start at once make many necessary.
const soonest = 200 * time.Millisecond

// untilNextList returns a random wait before the next list. soon is whether an event has made one necessary.
func (s *Source) untilNextList(soon bool) time.Duration {
	if soon {
		return jitter.Full(2 * min(soonest, s.times.list))
	}
	return jitter.Full(2 * s.times.list)
}

// mostFailures is how many lists in a row may fail: the kubelet refuses those who ask too often together.
const mostFailures = 3

// takesIn returns the news of an event. If remain, only a list says what has become of that pod, or of other pods of that name.
func (s *Source) takesIn(h heard) (news []watch.Event, remain bool) {
	s.hears(0)
	if h.isDeleted {
		return s.roster.removed(h.id)
	}
	if s.roster.contradicts(h.told) {
		return nil, true
	}
	return s.roster.changed(h.told), false
}

// relist asks for all pods.
func (s *Source) relist(ctx context.Context, r reader) answered {
	a := answered{pods: list{}, ended: map[uint64]bool{}}
	a.err = s.client.relist(ctx, func(message []byte) error {
		p, err := r.read(message)
		if err == nil && !a.pods.add(p) {
			a.ended[p.message] = true
		}
		return err
	})
	return a
}

// compares returns the news of a list.
func (s *Source) compares(l answered, later map[types.UID]bool) ([]watch.Event, error) {
	if l.err != nil {
		return nil, l.err
	}
	s.roster.ended = l.ended
	news := s.roster.listed(l.pods, later)
	s.hears(len(news))
	return news, nil
}

// again opens the next stream. Auto gives up a kubelet that does not answer for long.
func (s *Source) again(ctx context.Context) (*stream, error) {
	since := time.Now()
	for failures := 1; ; failures++ {
		from, err := s.client.list(ctx, s.roster.reader)
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
