package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// Labels that dockershim and cri-dockerd put on the containers in a sandbox.
const (
	labelSandboxID     = "io.kubernetes.sandbox.id"
	labelContainerName = "io.kubernetes.container.name"
)

// FirstStart returns when the first container of a sandbox was started, of those with a name that counts; the zero time if none was. Containers that
// were removed since are not known.
func (f *Finder) FirstStart(ctx context.Context, sandboxID string, counts func(container string) bool) (first time.Time, err error) {
	if err := f.negotiate(ctx); err != nil {
		return first, err
	}
	filters := client.Filters{}.Add("label", labelSandboxID+"="+sandboxID)
	all, err := f.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return first, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range all.Items {
		name := c.Labels[labelContainerName]
		if c.Labels[labelSandboxID] != sandboxID || name == "" || !counts(name) {
			continue
		}
		answer, err := f.engine.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) { // removed since it was listed
			continue
		} else if err != nil {
			return first, fmt.Errorf("inspect container %s: %w", name, err)
		}
		if answer.Container.State == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, answer.Container.State.StartedAt)
		if err == nil && at.Year() > 1970 && (first.IsZero() || at.Before(first)) { // of a container that was not started, the year is 1
			first = at
		}
	}
	return first, nil
}
