package container

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
)

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
