package nri

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// stoppedTimeout bounds what is done when a container has ended. The runtime makes no other call on the node meanwhile.
const stoppedTimeout = 500 * time.Millisecond

// Container has ended, or is being stopped.
type Container struct {
	ID, Name string
	// Ended reports whether the call says that it has ended, with ExitCode. CRI-O 1.30 to 1.35 does not: then only the runtime's answers tell.
	Ended    bool
	ExitCode int32
}

// stoppedSession is a session that also subscribes to the end of containers.
type stoppedSession struct{ *session }

// StopContainer is called when a container has ended by itself, and again when the kubelet has stopped it. It never fails.
func (s stoppedSession) StopContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	s.stopped(ctx, pod, c)
	return nil, nil
}

// stopped tells Config.Stopped of a container that has ended or is being stopped, and returns after stoppedTimeout at the latest.
func (p *plugin) stopped(ctx context.Context, pod *api.PodSandbox, c *api.Container) {
	sandbox, treatment := p.readEvent(pod)
	if treatment != handle {
		return
	}
	p.calls.begin()
	defer p.calls.end()
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, p.logOf(sandbox)), stoppedTimeout)
	done := make(chan verdict, 1)
	go func() {
		defer cancel()
		done <- p.callStopped(ctx, sandbox, Container{ID: c.GetId(), Name: c.GetName(), Ended: c.GetFinishedAt() != 0, ExitCode: c.GetExitCode()})
	}()
	var err error
	select {
	case v := <-done:
		err = v.err
	case <-ctx.Done():
		err = errLate
	}
	if err != nil && !errors.Is(err, podnet.ErrNoPod) {
		p.logOf(sandbox).Error(err, "end of a container not acted on", "sandbox", sandbox.ID)
	}
}

func (p *plugin) callStopped(ctx context.Context, s podnet.Sandbox, c Container) (v verdict) {
	defer p.contain(&v)
	return verdict{err: p.Stopped(ctx, s, c)}
}
