package node

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"istio-pod-network-controller/internal/sidecar"
)

// sidecarProber runs programs of proxies' images for their answers. It remembers an answer for as long as the node has the image.
type sidecarProber struct {
	programs interface {
		ImageID(ctx context.Context, image string) (string, error)
		Output(ctx context.Context, spec sidecar.Spec) (string, error)
	}

	mu    sync.Mutex
	known map[string]answered // by the image's name and the command
}

type answered struct{ image, output string }

// Output returns what the program of a container prints.
func (p *sidecarProber) Output(ctx context.Context, spec sidecar.Spec) (string, error) {
	id, err := p.programs.ImageID(ctx, spec.Image)
	if err != nil {
		return "", err
	}
	key := strings.Join(append([]string{spec.Image}, append(spec.Command, spec.Args...)...), "\x00")
	p.mu.Lock()
	last, known := p.known[key]
	p.mu.Unlock()
	if known && last.image == id {
		return last.output, nil
	}
	output, err := p.programs.Output(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("run it in a container: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]answered{}
	}
	p.known[key] = answered{id, output}
	return output, nil
}
