-- The health of objects of queuectl.dev in Argo CD: docs/how-to/custom-resources.md has its place in argocd-cm.
local function condition(kind)
  for _, one in ipairs(obj.status and obj.status.conditions or {}) do
    if one.type == kind then return one end
  end
end

local generation = obj.metadata.generation or 0
local ready = condition("Ready")
if ready == nil or ready.status == "Unknown" or (obj.status.observedGeneration or 0) < generation then
  return {status = "Progressing", message = "The controller has not read this generation"}
end
if ready.status == "False" then
  return {status = "Degraded", message = ready.message or ready.reason}
end
local active = condition("Active")
if active ~= nil and active.status == "False" then
  -- By its stopPolicy, that of its ClusterQueue, or an operation such as `queuectl stop`, of which the object has nothing.
  local stopped = active.reason == "ClusterQueueStopped" or active.reason == "LocalQueueStopped"
  local status = stopped and "Suspended" or "Degraded"
  return {status = status, message = active.message or active.reason}
end
return {status = "Healthy", message = ready.message or ""}
