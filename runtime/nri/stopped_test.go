package nri

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
)

func TestTheEndOfAContainerIsPassedOn(t *testing.T) {
	end := &api.Container{Id: "c1", Name: "app", FinishedAt: 7, ExitCode: 3}
	for name, c := range map[string]struct {
		pod       *api.PodSandbox
		container *api.Container
		stopped   func(context.Context) error
		told      bool
	}{
		"a container has ended":                   {event(nil), end, nil, true},
		"the handler fails":                       {event(nil), end, func(context.Context) error { return errors.New("no") }, true},
		"the handler panics":                      {event(nil), end, func(context.Context) error { panic("no") }, true}, //nolint:forbidigo // it has to be survived
		"the handler does not return":             {event(nil), end, func(context.Context) error { select {} }, true},
		"the runtime does not say when it ended":  {event(nil), &api.Container{Id: "c1", Name: "app"}, nil, true},
		"a pod of a namespace that always passes": {event(func(p *api.PodSandbox) { p.Namespace = "kube-system" }), end, nil, false},
		"a pod on the host's network":             {event(func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] }), end, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan Container, 1)
			p, _ := newTestPlugin(func(config *Config) { config.Stopped = tell(t, told, c.stopped) })
			began := time.Now()
			update, err := stoppedSession{&session{plugin: p}}.StopContainer(t.Context(), c.pod, c.container)
			if took := time.Since(began); err != nil || update != nil || took > time.Second {
				t.Errorf("%v, %v after %s", update, err, took)
			}
			got, want := Container{}, Container{}
			select {
			case got = <-told:
			default:
			}
			if c.told {
				want = Container{ID: "c1", Name: "app", Ended: c.container.FinishedAt != 0, ExitCode: c.container.ExitCode}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// tell returns a handler that sends each container to told, and then calls then.
func tell(t *testing.T, told chan<- Container, then func(context.Context) error) func(context.Context, podnet.Sandbox, Container) error {
	t.Helper()
	return func(ctx context.Context, s podnet.Sandbox, c Container) error {
		if _, limited := ctx.Deadline(); !limited || s.ID != "sandbox-1" || s.UID != "uid-1" {
			t.Errorf("told of %+v, with a limit: %t", s, limited)
		}
		told <- c
		if then == nil {
			return nil
		}
		return then(ctx)
	}
}

// The runtime makes the calls that the plugin's type has: without a handler this one costs nothing.
func TestTheRuntimeTellsOfEndsOnlyIfItIsAsked(t *testing.T) {
	if _, told := any(&session{}).(stub.StopContainerInterface); told {
		t.Error("a session without a handler subscribes to ended containers")
	}
	if _, told := any(stoppedSession{}).(stub.StopContainerInterface); !told {
		t.Error("the session with a handler is not told")
	}
}
