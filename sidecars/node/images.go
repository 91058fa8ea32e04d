package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/secretvolume"
)

const (
	// pullTimeout bounds the pull of one image.
	pullTimeout = 10 * time.Minute
	// pullPause is how long no pull is tried after a failed one, however many pods wait for the image.
	pullPause = 10 * time.Second
)

// sidecarImages brings images to the node. A pull takes minutes, so it goes on beside the caller.
type sidecarImages struct {
	runtime *container.Runtime
	secrets secretvolume.Volumes
	pause   time.Duration // after a pull that failed
	done    func()        // called after each pull

	mu      sync.Mutex
	pulling map[wantedImage]struct{}
	failed  map[wantedImage]failedPull
}

// failedPull is the last pull of an image, which failed. Ensure returns it at least once, and for pullPause; each sandbox
// that gets it pauses by itself, too.
type failedPull struct {
	why  error
	at   time.Time
	told bool
}

// wantedImage is an image, and the Secrets that it is pulled with: with others it may be refused.
type wantedImage struct{ image, secrets string }

// Ensure returns nil if the node has the image, sidecars.ErrPulling while it is pulled, and why it could not be pulled.
func (i *sidecarImages) Ensure(ctx context.Context, p *profile.Version) error {
	if id, err := i.runtime.ImageID(ctx, p.Spec.Image); err != nil || id != "" {
		return err
	}
	names := make([]string, 0, len(p.Spec.ImagePullSecrets))
	for _, s := range p.Spec.ImagePullSecrets {
		names = append(names, s.Name)
	}
	want := wantedImage{p.Spec.Image, strings.Join(names, ",")}
	i.mu.Lock()
	defer i.mu.Unlock()
	if f, ok := i.failed[want]; ok && (!f.told || time.Since(f.at) < i.pause) {
		f.told = true
		i.failed[want] = f
		return f.why
	}
	if _, ok := i.pulling[want]; !ok {
		if i.pulling == nil {
			i.pulling, i.failed = map[wantedImage]struct{}{}, map[wantedImage]failedPull{}
		}
		i.pulling[want] = struct{}{}
		go i.pull(context.WithoutCancel(ctx), want, slices.Clone(p.Spec.ImagePullSecrets))
	}
	return sidecars.ErrPulling
}

// pull tries also if some of the Secrets cannot be used: the others may be enough. Only if it fails they are named.
func (i *sidecarImages) pull(ctx context.Context, want wantedImage, secrets []v1alpha1.SecretReference) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	start := time.Now()
	credentials, unusable := i.credentials(want.image, secrets)
	err := i.runtime.Pull(ctx, want.image, credentials)
	ctrl.Log.Info("image pulled", "image", want.image, "duration", time.Since(start), "failed", err != nil)
	if err != nil && unusable != nil {
		err = fmt.Errorf("%w; %w", err, unusable)
	}
	i.note(want, err)
	i.done()
}

// note remembers how a pull has ended. Failures older than pullTimeout are forgotten.
func (i *sidecarImages) note(want wantedImage, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.pulling, want)
	maps.DeleteFunc(i.failed, func(other wantedImage, f failedPull) bool { return other == want || time.Since(f.at) > pullTimeout })
	if err != nil {
		i.failed[want] = failedPull{why: err, at: time.Now()}
	}
}

// credentials returns the Secrets' credentials for the image's registry, and which Secrets have none.
func (i *sidecarImages) credentials(image string, secrets []v1alpha1.SecretReference) (found []container.Auth, unusable error) {
	for _, s := range secrets {
		of, err := i.credentialsOf(s.Name, image)
		found = append(found, of...)
		if err == nil {
			continue
		}
		err = fmt.Errorf("imagePullSecrets: Secret %q: %w", s.Name, err)
		if unusable != nil {
			err = fmt.Errorf("%w; %w", unusable, err)
		}
		unusable = err
	}
	return found, unusable
}

func (i *sidecarImages) credentialsOf(secret, image string) ([]container.Auth, error) {
	values, err := i.secrets.Read(secret, container.DockerConfigKey)
	if err != nil {
		return nil, err
	}
	all, err := container.ParseDockerConfig(values[container.DockerConfigKey])
	if err != nil {
		return nil, err
	}
	found := all.For(image)
	if len(found) == 0 {
		return nil, errors.New("it has no credentials for the image's registry")
	}
	return found, nil
}

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
