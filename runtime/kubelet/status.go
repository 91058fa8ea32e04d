package kubelet

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// State is where pods come from.
type State struct {
	// From is Kubelet or API, or "" before the first answer.
	From Mode
	// Heard is when the kubelet said something last.
	Heard time.Time
	// Err is why the kubelet does not answer, while it is asked; nil if it does.
	Err error
	// Missed are changes that only a new list has shown, and Moves the times that pods came from somewhere else.
	Missed, Moves uint64
}

// standing is a State that changes.
type standing struct {
	mu  sync.Mutex
	now State
}

// State returns where pods come from now.
func (s *standing) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// takes notes where pods come from now. The kubelet answers then.
func (s *standing) takes(ctx context.Context, from Mode) {
	s.mu.Lock()
	was := s.now
	s.now.From, s.now.Err = from, nil
	if from == Kubelet {
		s.now.Heard = time.Now()
	}
	if was.From != "" && was.From != from {
		s.now.Moves++
	}
	s.mu.Unlock()
	switch {
	case was.From != from:
		log.FromContext(ctx).Info("the node's pods come from another source now", "source", from)
	case was.Err != nil && from == Kubelet:
		log.FromContext(ctx).Info("the kubelet serves its pods again")
	}
}

// hears notes that the kubelet has said something, and how many changes it had not told before.
func (s *standing) hears(missed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Heard = time.Now()
	s.now.Missed += uint64(max(0, missed))
}

// fails notes that the kubelet does not answer. The first of several failures is logged.
func (s *standing) fails(ctx context.Context, err error) {
	s.mu.Lock()
	was := s.now.Err
	s.now.Err = err
	s.mu.Unlock()
	if was == nil {
		log.FromContext(ctx).Info("the kubelet does not serve its pods", "reason", err.Error())
	}
}
