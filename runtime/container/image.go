package container

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotPulled means that an image is not on the node and could not be pulled, with the runtime's reason.
var ErrNotPulled = errors.New("the image cannot be pulled")

// images is the image service of the node.
type images struct{ client criv1.ImageServiceClient }

// ImageID returns the ID of an image that the node has, or "": a name may lead to another image later.
func (i images) ImageID(ctx context.Context, image string) (string, error) {
	resp, err := i.client.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: image}})
	if err != nil {
		return "", fmt.Errorf("look for image %q: %w", image, err)
	}
	return resp.GetImage().GetId(), nil
}

// Pull fetches an image, with each of the credentials until one is accepted, or without. The error contains none of them.
func (i images) Pull(ctx context.Context, image string, credentials []Auth) error {
	if len(credentials) == 0 {
		credentials = []Auth{{}}
	}
	var refused error
	for _, a := range credentials {
		request := &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: image, UserSpecifiedImage: image}}
		if a != (Auth{}) {
			request.Auth = &criv1.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}
		}
		_, err := i.client.PullImage(ctx, request)
		if err == nil {
			return nil
		}
		refused = err
		if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled {
			break
		}
	}
	return fmt.Errorf("%q: %w: %s", image, ErrNotPulled, without(credentials, status.Convert(refused).Message()))
}

// without returns the runtime's text without credentials that it may repeat.
func without(credentials []Auth, text string) string {
	for _, a := range credentials {
		for _, secret := range []string{a.Password, a.IdentityToken, base64.StdEncoding.EncodeToString([]byte(a.Username + ":" + a.Password))} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "[hidden]")
			}
		}
	}
	return text
}

// DockerConfigKey is the key of a Secret of type kubernetes.io/dockerconfigjson.
const DockerConfigKey = ".dockerconfigjson"

// Registries that Docker's configuration names in ways of its own.
const (
	dockerHub    = "docker.io"
	dockerHubAPI = "index.docker.io"
)

// Auth is what a registry asks for. The zero value is none. It does not name the registry: containerd leaves out credentials whose server
// address is not literally the host that it asks, which for Docker Hub it never is. The kubelet does not name it, either.
type Auth struct{ Username, Password, IdentityToken string }

// Credentials are the entries of one Secret, each for a registry or a part of one.
type Credentials []credential

type credential struct {
	Auth
	// host has labels that may be patterns (*.example.com), and a port if it names one. path is a prefix of the image's path, or "".
	server, host, path string
}

// ParseDockerConfig reads the value of DockerConfigKey. The error contains nothing of it.
func ParseDockerConfig(text []byte) (Credentials, error) {
	var config struct {
		Auths map[string]struct {
			Username, Password, Auth, IdentityToken string
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, errors.New(`it is not of the form {"auths": {"REGISTRY": {"username": "U", "password": "P"}}}`) // the decoder's text may hold a part of it
	}
	var out Credentials
	for server, entry := range config.Auths {
		auth := Auth{Username: entry.Username, Password: entry.Password, IdentityToken: entry.IdentityToken}
		if entry.Auth != "" {
			pair, err := base64.StdEncoding.DecodeString(entry.Auth)
			user, password, ok := strings.Cut(strings.TrimRight(string(pair), "\x00"), ":")
			if err != nil || !ok {
				return nil, errors.New("the auth of one of its registries is not the base64 of USER:PASSWORD")
			}
			auth.Username, auth.Password = user, password
		}
		host, prefix := splitServer(server)
		out = append(out, credential{Auth: auth, server: server, host: host, path: prefix})
	}
	// The most specific first, and always in the same order.
	slices.SortFunc(out, func(a, b credential) int {
		if len(a.path) != len(b.path) {
			return len(b.path) - len(a.path)
		}
		return strings.Compare(b.server, a.server)
	})
	if len(out) == 0 {
		return nil, errors.New("it names no registry")
	}
	return out, nil
}

// splitServer returns the host and the path of a registry as Docker's configuration writes it: "https://index.docker.io/v1/" is all of
// Docker Hub.
func splitServer(server string) (host, prefix string) {
	_, rest, ok := strings.Cut(server, "://")
	if !ok {
		rest = server
	}
	host, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if prefix == "v1" || prefix == "v2" {
		prefix = ""
	}
	if host == dockerHubAPI {
		host = dockerHub
	}
	return host, prefix
}

// splitImage returns the registry of an image and its path there. Without a registry it is Docker Hub's.
func splitImage(image string) (host, name string) {
	host, name, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return dockerHub, image
	}
	if host == dockerHubAPI {
		host = dockerHub
	}
	return host, name
}

// For returns the credentials for an image, the most specific first.
func (c Credentials) For(image string) (out []Auth) {
	host, name := splitImage(image)
	for _, one := range c {
		if matchHost(one.host, host) && matchPath(one.path, name) {
			out = append(out, one.Auth)
		}
	}
	return out
}

// matchHost compares hosts label by label, and their ports exactly, as the kubelet does.
func matchHost(pattern, host string) bool {
	if pattern == host { // also an IPv6 address
		return true
	}
	patternName, patternPort, _ := strings.Cut(pattern, ":")
	hostName, hostPort, _ := strings.Cut(host, ":")
	patterns, labels := strings.Split(patternName, "."), strings.Split(hostName, ".")
	if patternPort != hostPort || len(patterns) != len(labels) {
		return false
	}
	for i := range patterns {
		if ok, err := path.Match(patterns[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// matchPath reports whether a prefix ends where a part of the name ends.
func matchPath(prefix, name string) bool {
	if prefix == "" {
		return true
	}
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], "/:@"))
}
