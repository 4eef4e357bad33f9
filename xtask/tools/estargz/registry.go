package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// repository is one repository of a registry that asks for no credentials.
type repository struct {
	base string // scheme://host/v2/name
}

// parseReference splits HOST/NAME:TAG.
func parseReference(s string, plainHTTP bool) (*repository, string, error) {
	host, rest, ok := strings.Cut(s, "/")
	name, tag, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || host == "" || name == "" || tag == "" {
		return nil, "", fmt.Errorf("not of the form HOST/NAME:TAG")
	}
	scheme := "https"
	if plainHTTP {
		scheme = "http"
	}
	return &repository{base: scheme + "://" + host + "/v2/" + name}, tag, nil
}

func (r *repository) getManifest(tag string, into *manifest) error {
	body, err := r.get("/manifests/"+tag, manifestMediaType)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if into.MediaType == "" {
		into.MediaType = manifestMediaType
	}
	if into.MediaType != manifestMediaType {
		return fmt.Errorf("manifest is %s, want %s", into.MediaType, manifestMediaType)
	}
	return nil
}

func (r *repository) putManifest(tag, mediaType string, body []byte) error {
	return r.put(r.base+"/manifests/"+tag, mediaType, bytes.NewReader(body), int64(len(body)))
}

// getBlob fetches a whole blob and checks its digest.
func (r *repository) getBlob(d descriptor) ([]byte, error) {
	body, err := r.get("/blobs/"+d.Digest, "")
	if err != nil {
		return nil, err
	}
	if got := digestOf(body); got != d.Digest {
		return nil, fmt.Errorf("blob %s has digest %s", d.Digest, got)
	}
	return body, nil
}

// putBlob pushes a blob in one piece unless the registry has it.
func (r *repository) putBlob(d descriptor, body io.Reader) error {
	if r.has("/blobs/" + d.Digest) {
		return nil
	}
	place, err := r.startUpload()
	if err != nil {
		return err
	}
	query := place.Query()
	query.Set("digest", d.Digest)
	place.RawQuery = query.Encode()
	return r.put(place.String(), "application/octet-stream", body, d.Size)
}

// startUpload asks the registry where to put a blob.
func (r *repository) startUpload() (*url.URL, error) {
	resp, err := http.Post(r.base+"/blobs/uploads/", "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return nil, refused(resp)
	}
	return resp.Location()
}

func (r *repository) has(path string) bool {
	resp, err := http.Head(r.base + path)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (r *repository) get(path, accept string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refused(resp)
	}
	return io.ReadAll(resp.Body)
}

func (r *repository) put(to, mediaType string, body io.Reader, size int64) error {
	req, err := http.NewRequest(http.MethodPut, to, body)
	if err != nil {
		return err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return refused(resp)
	}
	return nil
}

// refused describes an answer that is not the wanted one.
func refused(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	return fmt.Errorf("%s %s: %s %s", resp.Request.Method, resp.Request.URL, resp.Status, text)
}
